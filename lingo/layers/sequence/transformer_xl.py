"""The relative position encoding of Transformer-XL: a bias of the logits that reads the queries.

    logit(i, j) = (q_i + u) . k_j + (q_i + v) . W r(i - j)         r: sines and cosines

There are two ways to compute the second term, and neither has a tensor [T, S, D]:

- If the positions are constants and consecutive, a query is multiplied with one vector per
  distance. The products [T, T + S - 1] are then shifted row by row to [T, S].
- Otherwise, such as in decoding steps, the sine and cosine of a difference are products of sines
  and cosines. So queries are rotated by their positions, and multiplied with one vector per key.

Axes: B batch, T query positions, S key positions, D model width, N heads, H head width,
M distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.product import Product
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall
from lingo.layers.sequence.positions import AttentionPositions, consecutive
from lingo.ops.shape import sizes_of


class TransformerXl(AttentionPositions):
    """Adds the product of query and distance to each logit (Dai et al. 2019, sec. 3.3).

    The logit's scale, such as 1 / sqrt(H), multiplies all four terms, as in the paper; Lingvo
    scales only the queries, which changes nothing but the scale of u and v. Departs from the paper:
    all sines come first, then all cosines; this only reorders the rows of `w_position`.

    Weights:
        w_position: [D, N, H], projects the sines and cosines of a distance to each head.
        bias_content: [N, H], u, added to queries that meet keys; initially zeros.
        bias_position: [N, H], v, added to queries that meet distances; initially zeros.
    """

    dim: int  # D, number of sines and cosines, even; inherited from the attention
    num_heads: int  # N; inherited from the attention
    head_dim: int  # H; inherited from the attention
    # the slowest wave has a period of about 2 pi * max_wavelength positions
    max_wavelength: float = 10_000.0
    init: Initializer = FanIn  # of w_position

    products = (Product("w_position", exact=True),)
    reads_queries: ClassVar[bool] = True

    def check(self) -> None:
        if self.p.dim % 2:
            raise ParamError(f"dim={self.p.dim} is odd; each wave has a sine and a cosine")
        ranges.check_positive(self.p, "max_wavelength")

    def setup(self) -> None:
        p = self.p
        heads, axes = [p.num_heads, p.head_dim], ("heads", "head_dim")
        self.w_position = self.weight(
            "w_position", [p.dim, *heads], axes=("embed", *axes), init=p.init.build()
        )
        self.bias_content = self.weight("bias_content", heads, axes=axes, init=ZEROS)
        self.bias_position = self.weight("bias_position", heads, axes=axes, init=ZEROS)

    def split_queries(self, query: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return query + self.bias_content, query + self.bias_position

    def query_bias(
        self, query: tf.Tensor, query_positions: tf.Tensor, key_positions: tf.Tensor
    ) -> tf.Tensor:
        queries, keys = map(consecutive, (query_positions, key_positions))
        if queries is None or keys is None or _splits_length():
            features = self.key_features(key_positions)
            product = tf.matmul(
                self.query_features(query, query_positions), features, transpose_b=True
            )
            return tf.cast(product, tf.float32)
        largest = queries[-1] - keys[0]
        distances = largest - np.arange(len(queries) + len(keys) - 1)
        waves = np.concatenate([np.sin(a := self._angles(distances)), np.cos(a)], axis=-1)
        waves = tf.cast(tf.constant(waves, tf.float32), self.p.dtype)
        by_distance = tf.einsum("md,dnh->nmh", *self.operands("w_position", input=waves))
        query = tf.cast(query, self.p.dtype)
        product = tf.matmul(query, by_distance, transpose_b=True)
        return tf.cast(shift_rows(product, len(keys)), tf.float32)

    def query_features(self, query: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        (w,), query = self.operands("w_position"), tf.cast(query, self.p.dtype)
        sines, cosines = tf.split(tf.einsum("bnth,dnh->bntd", query, w), 2, axis=-1)
        sin, cos = self._waves(positions)
        # sin(i - j) = sin i cos j - cos i sin j, and cos(i - j) = cos i cos j + sin i sin j
        return tf.concat([cosines * sin - sines * cos, sines * sin + cosines * cos], axis=-1)

    def key_features(self, positions: tf.Tensor) -> tf.Tensor:
        return tf.concat(self._waves(positions), axis=-1)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the operations for queries of shape [B, T, D] that see `memory_length` keys.

        None: T keys.
        """
        batch, length, _ = shape
        num = length + (length if memory_length is None else memory_length) - 1
        width = self.p.num_heads * self.p.head_dim
        return 2 * num * self.p.dim * width + 2 * batch * length * num * width

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        batch, length, *_ = call.shape
        size = (batch, length, self.p.num_heads, self.p.head_dim)
        return [Residual(1, size, (*SEQUENCE_AXES, "heads", None))]

    def _angles(self, positions: Any) -> Any:
        half = self.p.dim // 2
        frequencies = self.p.max_wavelength ** (-np.arange(half) / half)
        return positions[..., None] * frequencies.astype(np.float32)

    def _waves(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns sines and cosines of positions, [B or 1, 1, T, D/2] each; int32 [B or 1, T]."""
        angles = self._angles(tf.cast(positions, tf.float32))[:, None]
        return tf.cast(tf.sin(angles), self.p.dtype), tf.cast(tf.cos(angles), self.p.dtype)


def shift_rows(x: tf.Tensor, num_columns: int) -> tf.Tensor:
    """Returns the last `num_columns` columns of row T - 1, and one column earlier per row below it.

    Args:
        x: [B, N, T, T + S - 1], any type.
        num_columns: S.

    Returns:
        [B, N, T, S], whose element [t, s] is x[t, T - 1 - t + s].

    >>> shift_rows(tf.constant([[[[0, 1, 2], [3, 4, 5]]]]), 2)[0, 0].numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    batch, heads, rows, columns = sizes_of(x)
    if rows == 1:
        return x
    flat = tf.reshape(x, [batch, heads, rows * columns])
    # in rows that are one element shorter, each row begins one column earlier
    flat = flat[:, :, rows - 1 : rows * columns - 1]
    return tf.reshape(flat, [batch, heads, rows, columns - 1])[:, :, :, :num_columns]


def _splits_length() -> bool:
    """Whether devices have parts of the queries, whose products `shift_rows` would gather."""
    rules = context.current().rules
    return rules is not None and rules.parts("length") > 1
