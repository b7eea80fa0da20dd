"""Causal self-attention over packed documents.

Axes: B batch, T query positions, S key positions, D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.dropout import check_rate, dropout
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.sequence.positions import AttentionPositions
from lingo.lazy import tf
from lingo.ops.attention import attend, causal_mask, segment_mask


class Attention(Layer):
    """Projects to N heads, attends back in each, projects back (Vaswani et al. 2017, sec. 3.2.2).

    A position sees itself and those before it in its own document. Departs from the paper:
    projections carry no bias.

    Weights:
        w_query, w_key, w_value: [D, N, H].
        w_output: [N, H, D].

    Caches:
        key, value: [N, H] for each position.
    """

    dim: int  # width of the input and of the output
    num_heads: int  # N
    head_dim: int | None = None  # H; None: dim / num_heads
    positions: AttentionPositions | None = None  # what positions do to queries, keys and scores
    dropout_rate: float = 0.0  # of the weights that average the values
    init: Initializer = FanIn  # of the four projections

    def check(self) -> None:
        p = self.p
        check_rate("dropout_rate", p.dropout_rate)
        if p.num_heads < 1:
            raise ParamError(f"num_heads={p.num_heads} is not positive")
        if p.head_dim is not None and p.head_dim < 1:
            raise ParamError(f"head_dim={p.head_dim} is not positive")
        if p.head_dim is None and p.dim % p.num_heads:
            raise ParamError(
                f"dim={p.dim} is not a multiple of num_heads={p.num_heads}; set head_dim"
            )

    def setup(self) -> None:
        p, init = self.p, self.p.init.build()
        heads, into = [p.num_heads, self._head_dim], ("embed", "heads", "head_dim")
        self.w_query = self.weight("w_query", [p.dim, *heads], axes=into, init=init)
        self.w_key = self.weight("w_key", [p.dim, *heads], axes=into, init=init)
        self.w_value = self.weight("w_value", [p.dim, *heads], axes=into, init=init)
        self.w_output = self.weight(
            "w_output",
            [*heads, p.dim],
            axes=("heads", "head_dim", "embed"),
            init=init,
            fan_in=p.num_heads * self._head_dim,
        )
        self.key = self.cache("key", heads, axes=("heads", "head_dim"), per_position=True)
        self.value = self.cache("value", heads, axes=("heads", "head_dim"), per_position=True)
        if p.positions is not None:
            self.positions = p.positions.build(num_heads=p.num_heads, head_dim=self._head_dim)
        else:
            self.positions = None

    def __call__(
        self,
        x: tf.Tensor,
        *,
        segments: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Lets each position gather from those before it in its document.

        Args:
            x: [B, T, D], any float type.
            segments: int32 [B, T], the document of each position (0: padding); None: one.
            positions: int32 [B, T], each position's number in its document; None: 0, 1, 2, ...

        Returns:
            [B, T, D], in the layer's dtype; finite at padding, too.
        """
        length = x.shape[1] or tf.shape(x)[1]
        numbers = tf.range(length)[None] if positions is None else positions
        query, key, value = self._project(x, numbers)
        mask = causal_mask(length)
        if segments is not None:
            mask = tf.logical_and(mask, segment_mask(segments))
        return self._attend(query, key, value, mask, self._bias(numbers, numbers))

    def step(
        self, x: tf.Tensor, index: tf.Tensor, *, positions: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Computes the next positions of one document a row, and remembers their keys and values.

        Args:
            x: [B, C, D], positions index, ..., index + C - 1 of the input.
            index: int32 scalar; index + C is at most the length of the caches.
            positions: int32 [B, C]; None: index, index + 1, ... Those of earlier steps were one
                less each.

        Returns:
            [B, C, D], in the layer's dtype.
        """
        here = index + tf.range(x.shape[1] or tf.shape(x)[1])
        numbers = here[None] if positions is None else positions
        query, key, value = self._project(x, numbers)
        key, value = self._remember("key", key, index), self._remember("value", value, index)
        there = tf.range(tf.shape(key)[1])
        mask = (there[None, :] <= here[:, None])[None, None]
        bias = self._bias(numbers, numbers[:, :1] - index + there)
        return self._attend(query, key, value, mask, bias)

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, dim = shape
        width = self.p.num_heads * self._head_dim
        return 2 * batch * length * width * (4 * dim + 2 * length)

    @property
    def _head_dim(self) -> int:
        return self.p.dim // self.p.num_heads if self.p.head_dim is None else self.p.head_dim

    def _project(
        self, x: tf.Tensor, positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        x = tf.cast(x, self.p.dtype)
        query, key, value = (
            annotate(tf.einsum("btd,dnh->btnh", x, w), "batch", "length", "heads", "head_dim")
            for w in (self.w_query, self.w_key, self.w_value)
        )
        if self.positions is not None:
            query = self.positions.rotate(query, positions)
            key = self.positions.rotate(key, positions)
        return query, key, value

    def _bias(self, query_positions: tf.Tensor, key_positions: tf.Tensor) -> tf.Tensor | None:
        if self.positions is None:
            return None
        return self.positions.bias(query_positions, key_positions)

    def _attend(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        mask: tf.Tensor,
        bias: tf.Tensor | None,
    ) -> tf.Tensor:
        def thin(weights: tf.Tensor) -> tf.Tensor:
            return dropout(self, weights, rate=self.p.dropout_rate)

        gathered = attend(query, key, value, mask=mask, bias=bias, thin=thin)
        gathered = annotate(gathered, "batch", "length", "heads", "head_dim")
        out = tf.einsum("btnh,nhd->btd", gathered, self.w_output)
        return annotate(out, "batch", "length", "embed")

    def _remember(self, name: str, new: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Returns what is remembered, [B, S, N, H], with new positions from `index` on."""
        old = getattr(self, name)
        stop = index + tf.shape(new)[1]
        value = tf.concat([old[:, :index], new, old[:, stop:]], axis=1)
        value = tf.ensure_shape(value, old.shape)
        self.new_cache(name, value)
        return value
