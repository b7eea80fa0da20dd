"""Self-attention over an image, in which every pixel sees all pixels and their relative positions.

Axes: B batch, H height, W width, C input channels, F output channels, T = H W pixels, N heads, D
head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.sequence.dot_product import ATTENTION_PRODUCTS, weight_rounding
from lingo.ops.attention import attend
from lingo.ops.lookup import lookup

Positions = Literal["relative", "absolute", "none"]
"""What a pixel's attention knows of another pixel's position: its distances in both directions, its
row and column, or nothing."""


class ImageAttention(Layer):
    """Attention with positions in both directions (Srinivas et al. 2021, fig. 4).

    The logit with which pixel (h, w) attends to pixel (g, v) is

        q . (k + r_height[g - h + H - 1] + r_width[v - w + W - 1])   relative positions
        q . (k + a_height[g] + a_width[v])                           absolute positions
        q . k                                                        no positions

    with q = x w_query / sqrt(D) at (h, w), and k = x w_key at (g, v). The result is the
    concatenation of all heads' averages of values; no projection follows.

    Weights:
        w_query, w_key, w_value: [C, N, D].
        r_height: [2 H - 1, D], a vector per vertical distance, for all heads.
        r_width: [2 W - 1, D], a vector per horizontal distance, for all heads.
        a_height, a_width: [H, D] and [W, D], a vector per row and column, for all heads.
    """

    dim: int  # C, channels of the input
    output_dim: int  # F = N * D, channels of the output
    image: tuple[int, int]  # H and W
    num_heads: int = 4  # N, a divisor of F
    positions: Positions = "relative"  # what a pixel knows of another one's position
    init: Initializer = FanIn  # of all weights; the variance of vectors of positions is 1/D

    products = (
        *(Product(f"w_{name}") for name in ("query", "key", "value")),
        *(
            Product(f"{kind}_{name}", ("query",), sum_axes=(1,))
            for kind in ("r", "a")
            for name in ("height", "width")
        ),
        *ATTENTION_PRODUCTS,
    )

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "image", "num_heads")
        if p.output_dim % p.num_heads:
            raise ParamError(
                f"output_dim={p.output_dim} is not a multiple of num_heads={p.num_heads}"
            )

    def setup(self) -> None:
        p, init, head_dim = self.p, self.p.init.build(), self._head_dim
        for name in ("query", "key", "value"):
            shape, axes = [p.dim, p.num_heads, head_dim], (None, "heads", "head_dim")
            self.weight(f"w_{name}", shape, axes=axes, init=init)
        for name, size in zip(("height", "width"), p.image, strict=True):
            axes = (None, "head_dim")
            if p.positions == "relative":
                shape = [2 * size - 1, head_dim]
                self.weight(f"r_{name}", shape, axes=axes, init=init, fan_in=head_dim)
            elif p.positions == "absolute":
                self.weight(f"a_{name}", [size, head_dim], axes=axes, init=init, fan_in=head_dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H, W, F], in the layer's dtype, for images x [B, H, W, C].

        Raises ParamError if H and W differ from `image`.
        """
        shape: Any = x.shape
        _, *result_shape = self.output_shape(shape)
        x = tf.cast(tf.reshape(x, [-1, math.prod(self.p.image), self.p.dim]), self.p.dtype)
        query, key, value = (self._heads(name, x) for name in ("query", "key", "value"))
        # a vector, not a scalar, for speed: see `DotProductAttention._scale_query`
        scale = np.full(self._head_dim, self._head_dim**-0.5, np.float32)
        query *= tf.cast(scale, query.dtype)
        bias = None if self.p.positions == "none" else self._position_logits(query)
        query, key = self.operands("logits", query=query, key=key)
        (value,) = self.operands("averages", value=value)
        y = attend(query, key, value, bias=bias, round_weights=weight_rounding(self))
        y = tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [-1, *result_shape])
        return annotate(y, "batch", "height", "width", "channels")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        if tuple(image) != self.p.image:
            raise ParamError(f"images of {tuple(image)}, but the layer has image={self.p.image}")
        return (batch, *image, self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        batch, height, width, dim = shape
        places = height * width
        features = 3 * dim + 2 * places  # multiply-adds per pixel and channel
        features += 0 if self.p.positions == "none" else height + width
        return 2 * batch * places * self.p.output_dim * features

    @property
    def _head_dim(self) -> int:
        return self.p.output_dim // self.p.num_heads

    def _heads(self, name: str, x: tf.Tensor) -> tf.Tensor:
        """Projects x [B, T, C] to queries, keys or values, [B, N, T, D]."""
        y = tf.einsum("btc,cnd->btnd", *self.operands(f"w_{name}", input=x))
        y = annotate(y, "batch", "length", "heads", "head_dim")
        return tf.transpose(y, [0, 2, 1, 3])

    def _position_logits(self, query: tf.Tensor) -> tf.Tensor:
        """Returns the terms of the logits that depend on positions, float32 [B, N, T, T].

        They are the sum of a term for rows and a term for columns. `query` is [B, N, T, D].
        """
        height, width = self.p.image
        query = tf.reshape(query, [-1, self.p.num_heads, height, width, self._head_dim])
        if self.p.positions == "absolute":
            vertical = tf.einsum("bnhwd,gd->bnhwg", *self.operands("a_height", query=query))
            horizontal = tf.einsum("bnhwd,vd->bnhwv", *self.operands("a_width", query=query))
        else:
            by_row, rows = self.operands("r_height", query=query)
            by_column, columns = self.operands("r_width", query=query)
            rows = lookup(rows, tf.constant(distance_ids(height)))
            columns = lookup(columns, tf.constant(distance_ids(width)))
            vertical = tf.einsum("bnhwd,hgd->bnhwg", by_row, rows)
            horizontal = tf.einsum("bnhwd,wvd->bnhwv", by_column, columns)
        logits = tf.cast(vertical, tf.float32)[..., None]
        logits += tf.cast(horizontal, tf.float32)[..., None, :]
        places = height * width
        return tf.reshape(logits, [-1, self.p.num_heads, places, places])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the input and the tensors that attention keeps.

        The products with r_height and r_width keep the queries, too.
        """
        batch, heads, places = call.shape[0], self.p.num_heads, math.prod(self.p.image)
        size = (batch, places, heads, self.p.output_dim // heads)
        weights = (batch, heads, places, places)
        return [
            batch_residual(1, call.shape, "input"),
            Residual(6, size, ("batch", "length", "heads", None)),
            Residual(1, weights, ("batch", "heads", "length", None), is_squeezed=True),
        ]


def distance_ids(size: int) -> np.ndarray:
    """Returns j - i + size - 1 for pixels i and j of a row or column, int32 [size, size].

    This is the index of their distance in `r_height` or `r_width`.
    """
    places = np.arange(size, dtype=np.int32)
    return places - places[:, None] + np.int32(size - 1)
