"""Self-attention: positions of a document attend to each other.

Axes: B batch, T query positions, S key positions, D model width, N heads, K heads of keys and
values, H head width, C positions of a chunk, M blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.dot_product import DotProductAttention, swap_heads, within_documents
from lingo.layers.sequence.mask import Causal, Mask
from lingo.layers.sequence.positions import AttentionPositions
from lingo.ops.blocks import blocks, rows
from lingo.ops.memory import write_positions
from lingo.ops.shape import size_of

_FAR = 2**30  # in positions: outside of any window


class Attention(DotProductAttention):
    """Lets each position attend to those of its document that the mask allows.

    Each head has its own queries, keys and values (Vaswani et al. 2017, sec. 3.2.2). With fewer
    heads of keys and values, queries share them: `num_kv_heads=1` is multi-query attention (Shazeer
    2019; Ainslie et al. 2023). Departs from the first paper: no biases by default.

    Weights:
        w_query: [D, N, H].
        w_key, w_value: [D, K, H].
        w_output: [N, H, D].
        b_query: [N, H], b_key, b_value: [K, H], b_output: [D]; biases, with `use_bias`.
        feature_scale: [H], with `scale_features`: w multiplies queries by softplus(w) / ln 2.

    Caches:
        key, value: [K, S, H], where decoding has room for S positions; for a local window, S is
            window - 1, the last positions.
    """

    mask: Mask = Causal  # which positions of its document a position sees
    positions: AttentionPositions | None = None  # what positions do to queries, keys and scores

    def setup(self) -> None:
        super().setup()
        p = self.p
        self.mask = p.mask.build()
        self.positions = p.positions and p.positions.build(
            num_heads=p.num_heads, head_dim=self._head_dim, bidirectional=self.mask.sees_later
        )
        if self.mask.has_steps:
            for name in ("key", "value"):
                self._declare_memory(name)

    def _declare_memory(self, name: str) -> None:
        num, axis = self._num_heads(name)
        if self.mask.reach is None:
            shape, axes = [num, self._head_dim], (axis, "head_dim")
            self.cache(name, shape, axes=axes, per_position=True, position_axis=1)
        else:
            shape, axes = (
                [num, self.mask.reach.num_before, self._head_dim],
                (axis, None, "head_dim"),
            )
            self.cache(name, shape, axes=axes)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Lets each position attend to those that the mask allows in its document.

        Args:
            x: [B, T, D], any float type.
            inputs: `segments`, `position_ids`, `prefix` and `position_table`.

        Returns:
            [B, T, D], in the layer's dtype; finite at padding, too.
        """
        places = _places(x, 1)
        segments, table = inputs.segments, inputs.position_table
        numbers = places if inputs.position_ids is None else inputs.position_ids
        heads = self._project(x, numbers)
        if (block := self._block(x.shape[1])) is not None:
            return self._output(self._in_blocks(block, heads, places, numbers, segments, table))
        mask = within_documents(self.mask.sees(places, places, inputs.prefix), segments, segments)
        bias = self._bias(numbers, numbers, table)
        return self._output(self._gather(*map(swap_heads, heads), mask=mask, bias=bias))

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next positions of one document per example; caches their keys and values.

        Args:
            x: [B, C, D], any float type: positions index, ..., index + C - 1 of the input.
            index: int32 scalar; index + C is at most the length of the caches.
            inputs: `position_ids`, which must continue those of earlier steps, `prefix` and
                `position_table`.

        Returns:
            [B, C, D], in the layer's dtype.

        Raises:
            ValueError: if the mask may show positions of later chunks.
        """
        if not self.mask.has_steps:
            raise ValueError(
                f"{self.path or 'attention'}: {type(self.mask).__name__} shows later positions;"
                " what sees them cannot be computed step by step"
            )
        here = index + _places(x, 1)
        numbers = here if inputs.position_ids is None else inputs.position_ids
        query, key, value = map(swap_heads, self._project(x, numbers))
        key, value = self._remember(key, value, index)
        there = _places(key, 2)
        if self.mask.reach is not None:
            there += index - self.mask.reach.num_before
        bias = self._bias(numbers, numbers[:, :1] - index + there, inputs.position_table)
        prefix = inputs.prefix
        if prefix is not None:  # earlier positions are visible anyway
            prefix = there <= tf.reduce_max(tf.where(prefix, here, -1), axis=1, keepdims=True)
        if self.mask.reach is not None:
            there = tf.where(there < 0, -_FAR, there)
        mask = self.mask.sees(here, there, prefix)
        return self._output(self._gather(query, key, value, mask=mask, bias=bias))

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, _ = shape
        pairs = length * length
        if (block := self._block(length)) is not None:
            pairs = block.count(length) * block.size * block.num_keys
        return self._flops(queries=batch * length, keys=batch * length, pairs=batch * pairs)

    def _project(self, x: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns queries, keys and values, [B, T, heads, H], for x [B, T, D] at position ids."""
        query, key, value = (self._heads(name, x) for name in ("query", "key", "value"))
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.positions is not None:
            query, key = self.positions.rotate([query, key], numbers)
        return query, key, value

    def _bias(
        self, query_numbers: tf.Tensor, key_numbers: tf.Tensor, table: tf.Tensor | None
    ) -> tf.Tensor | None:
        if self.positions is None:
            return None
        return self.positions.bias(query_numbers, key_numbers, table)

    def _remember(self, key: tf.Tensor, value: tf.Tensor, index: tf.Tensor) -> list[tf.Tensor]:
        """Updates the caches; returns the keys and values of old and new positions, [B, K, S, H].

        Args:
            key: [B, K, C, H], keys of the new positions.
            value: [B, K, C, H], their values.
            index: int32 scalar, the index of the first new position.
        """
        old, new = [self.key, self.value], [key, value]
        if self.mask.reach is None:
            both = kept = write_positions(old, new, index)
        else:
            both = [tf.concat(pair, axis=2) for pair in zip(old, new, strict=True)]
            count = size_of(key, 2)
            kept = [
                tf.ensure_shape(v[:, :, count:], o.shape) for v, o in zip(both, old, strict=True)
            ]
        for name, memory in zip(("key", "value"), kept, strict=True):
            self.new_cache(name, memory)
        return both

    # ---- local windows

    def _block(self, length: int | None) -> _Block | None:
        """Returns how T positions are cut into blocks; None if that saves no logits."""
        if self.mask.reach is None or length is None:
            return None
        before, after = self.mask.reach
        block = _Block(max(before + 1, after), before > 0, after > 0)
        return block if length > block.num_keys else None

    def _in_blocks(
        self,
        block: _Block,
        heads: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
        places: tf.Tensor,
        numbers: tf.Tensor,
        segments: tf.Tensor | None,
        table: tf.Tensor | None,
    ) -> tf.Tensor:
        """Attends block by block: a batch of B * M blocks, each with the keys that it may see."""
        query, key, value = heads
        length: Any = query.shape[1]

        def ours(x: tf.Tensor) -> tf.Tensor:
            return blocks(x, block.size)

        def seen(x: tf.Tensor) -> tf.Tensor:
            return blocks(x, block.size, before=block.before, after=block.after)

        of_rows = tf.zeros_like(query[:, :1, 0, 0], tf.int32)
        # far from index 0, which pads blocks
        places, numbers = places + _FAR + of_rows, numbers + of_rows
        mask = self.mask.sees(ours(places), seen(places))
        if segments is not None:
            mask = within_documents(mask, ours(segments), seen(segments))
        gathered = self._gather(
            swap_heads(ours(query)),
            swap_heads(seen(key)),
            swap_heads(seen(value)),
            mask=mask,
            bias=self._bias(ours(numbers), seen(numbers), table),
            num_blocks=block.count(length),
        )
        return rows(gathered, length)


def _places(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns int32 [1, T], the indices 0, 1, 2, ... along an axis of x, which has T positions."""
    length = x.shape[axis]
    if length is None:
        return tf.range(tf.shape(x)[axis])[None]
    return tf.constant(np.arange(length, dtype=np.int32)[None])  # fewer operations in a loop


class _Block(NamedTuple):
    """The blocks of a local window: their size, and whether each sees the one before and after."""

    size: int
    before: bool
    after: bool

    @property
    def num_keys(self) -> int:
        """The number of keys that a block may see."""
        return (self.before + 1 + self.after) * self.size

    def count(self, length: int) -> int:
        """Returns the number of blocks of T positions."""
        return -(-length // self.size)
