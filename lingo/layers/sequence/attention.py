"""Self-attention: positions of a document attend to each other.

Axes: B batch, T query positions, S key positions, D model width, N heads, K heads of keys and
values, H head width, C positions of a chunk, M blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.dot_product import DotProductAttention, swap_heads, within_documents
from lingo.layers.sequence.mask import Causal, Mask, band_of
from lingo.layers.sequence.positions import AttentionPositions, Rotary
from lingo.ops.attention import write_positions
from lingo.ops.blocks import Blocks
from lingo.ops.blockwise_attention import Band, Logits
from lingo.ops.shape import size_of

_FAR = 2**30  # in positions: outside of any window


class Attention(DotProductAttention):
    """Lets each position attend to the positions of its document that the mask allows.

    The weights are described in `DotProductAttention`.

    Caches:
        key, value: [K, S, H], where decoding has room for S positions; with a local window, the
            last S = window - 1 positions.
        key_scale, value_scale: float32 [K, S, 1], with `cache_dtype`.
    """

    mask: Mask = Causal  # which positions of its document a position sees
    positions: AttentionPositions | None = None  # position encoding; None: no encoding

    def setup(self) -> None:
        super().setup()
        p = self.p
        self.mask = p.mask.build()
        self.positions = p.positions and p.positions.build(
            num_heads=p.num_heads, head_dim=self._head_dim, bidirectional=self.mask.sees_later
        )
        if self.mask.has_steps:
            reach = self.mask.reach
            for name in ("key", "value"):
                self._declare_cache(name, None if reach is None else reach.num_before)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Lets each position attend to the positions of its document that the mask allows.

        Args:
            x: [B, T, D], any float type.
            inputs: `segments`, `position_ids`, `prefix` and `position_table`.

        Returns:
            [B, T, D], in the layer's dtype; finite at padding, too.
        """
        indices, segments = _indices(x, 1), inputs.segments
        if inputs.position_ids is None:
            inputs = inputs._replace(position_ids=indices)
        heads = self._project(x, inputs.position_ids)
        if (blocks := self._blocks(x.shape[1])) is not None:
            return self._output(self._attend_in_blocks(blocks, heads, indices, inputs))
        if self.is_blockwise(x.shape[1], x.shape[1]):
            logits = self._logits(indices, inputs)
            return self._output(self._attend_blockwise(*map(swap_heads, heads), logits=logits))
        mask = within_documents(self.mask.sees(indices, indices, inputs.prefix), segments, segments)
        positions = self._bias_positions(indices, inputs)
        bias = self._bias(positions, positions, inputs.position_table)
        return self._output(self._attend(*map(swap_heads, heads), mask=mask, bias=bias))

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next positions of one document per example; caches their keys and values.

        Raises ValueError if the mask may show positions of later chunks.

        Args:
            x: [B, C, D], any float type: positions index, ..., index + C - 1 of the input.
            index: int32 scalar; index + C is at most the length of the caches.
            inputs: `position_ids`, which must continue from earlier steps, `prefix` and
                `position_table`.

        Returns:
            [B, C, D], in the layer's dtype.
        """
        if not self.mask.has_steps:
            raise ValueError(
                f"{self.path or 'attention'}: {type(self.mask).__name__} shows later positions, so"
                " it cannot be computed step by step: take another mask, such as Causal"
            )
        query_positions = index + _indices(x, 1)
        position_ids = query_positions if inputs.position_ids is None else inputs.position_ids
        query, key, value = map(swap_heads, self._project(x, position_ids))
        key, value = self._update_caches(key, value, index)
        key_positions, reach, prefix = _indices(key, 2), self.mask.reach, inputs.prefix
        if reach is not None:
            key_positions += index - reach.num_before
        bias = self._bias(
            position_ids, position_ids[:, :1] - index + key_positions, inputs.position_table
        )
        if prefix is not None:  # earlier positions are visible anyway
            last = tf.reduce_max(tf.where(prefix, query_positions, -1), axis=1, keepdims=True)
            prefix = key_positions <= last
        if reach is not None:
            key_positions = tf.where(key_positions < 0, -_FAR, key_positions)
        mask = self.mask.sees(query_positions, key_positions, prefix)
        return self._output(self._attend(query, key, value, mask=mask, bias=bias))

    def flops(self, shape: Sequence[int]) -> int:
        batch, length, _ = shape
        pairs = length * length
        if (blocks := self._blocks(length)) is not None:
            pairs = blocks.count(length) * blocks.size * blocks.num_keys
        return self._flops(queries=batch * length, keys=batch * length, pairs=batch * pairs)

    @property
    def _changes_queries_in_float32(self) -> bool:
        return isinstance(self.positions, Rotary) or super()._changes_queries_in_float32

    def _project(
        self, x: tf.Tensor, position_ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Projects x [B, T, D] to queries, keys and values, [B, T, heads, H] each.

        Queries and keys are rotated by `position_ids`, int32 [B or 1, T], if `positions` rotates.
        """
        query, key, value = (self._heads(name, x) for name in ("query", "key", "value"))
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.positions is not None:
            query, key = self.positions.rotate([query, key], position_ids)
        query, key = self.operands("logits", query=query, key=key)
        (value,) = self.operands("averages", value=value)
        return query, key, value

    def _bias(
        self, query_positions: tf.Tensor, key_positions: tf.Tensor, table: tf.Tensor | None
    ) -> tf.Tensor | None:
        if self.positions is None:
            return None
        return self.positions.bias(query_positions, key_positions, table)

    def _bias_positions(self, indices: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
        """Returns the positions, int32 [B or 1, T], from which biases compute distances.

        These are the position ids. If those are consecutive in a document, indices in the example
        have the same distances, and all examples share them; then the result is `indices`.
        """
        return indices if self.mask.has_consecutive_ids else inputs.position_ids

    def _update_caches(self, key: tf.Tensor, value: tf.Tensor, index: tf.Tensor) -> list[tf.Tensor]:
        """Adds the new keys and values, [B, K, C, H], to the caches.

        Returns all keys and all values for this step, cached and new ones: [B, K, S, H] each.
        """
        new, both = self._to_cache("key", key) | self._to_cache("value", value), {}
        for names in (("key", "value"), ("key_scale", "value_scale")):
            if names[0] in new:
                old = [getattr(self, name) for name in names]
                joined, last = self._append(old, [new[name] for name in names], index)
                both |= zip(names, joined, strict=True)
                for name, memory in zip(names, last, strict=True):
                    self.new_cache(name, memory)
        return [self._from_cache(name, both) for name in ("key", "value")]

    def _append(
        self, old: list[tf.Tensor], new: list[tf.Tensor], index: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Appends new positions to cached tensors.

        Returns two lists: the tensors that this step reads, with old and new positions, and the
        tensors to cache for the next step.
        """
        if self.mask.reach is None:
            both = write_positions(old, new, index)
            return both, both
        both = [tf.concat(pair, axis=2) for pair in zip(old, new, strict=True)]
        count = size_of(new[0], 2)
        last = [tf.ensure_shape(v[:, :, count:], o.shape) for v, o in zip(both, old, strict=True)]
        return both, last

    def _blocks(self, length: int | None) -> Blocks | None:
        """Returns how a local window's T positions are cut into blocks; None to use no blocks.

        Blocks are used only if they save logits.
        """
        if self.mask.reach is None or length is None or self.p.blockwise:
            return None
        before, after = self.mask.reach
        blocks = Blocks(max(before + 1, after), before > 0, after > 0)
        return blocks if length > blocks.num_keys else None

    def _logits(self, indices: tf.Tensor, inputs: CallInputs) -> Logits:
        """Returns the call's mask and bias in the form that `attend_blockwise` takes."""
        call, band = context.current(), band_of(self.mask)
        positions = self._bias_positions(indices, inputs)
        tensors = {"index": indices, "position": positions, "segment": inputs.segments}
        tensors = {name: x for name, x in tensors.items() if x is not None}
        key_inputs, weights = dict(tensors), {}
        if inputs.prefix is not None:
            key_inputs["prefix"] = inputs.prefix
        if self.positions is not None:
            weights = {"layer": dict(call.of([self.positions])["weights"])}
            if inputs.position_table is not None:
                weights["table"] = inputs.position_table

        def mask(query: Any, key: Any) -> Any:
            sees = None
            if band is None:
                sees = self.mask.sees(query["index"], key["index"], key.get("prefix"))
            return within_documents(sees, query.get("segment"), key.get("segment"))

        def bias(query: Any, key: Any, weights: Any) -> Any:  # also called for the gradient
            with context.enter_call(call.derive(weights=weights["layer"])):
                return self._bias(query["position"], key["position"], weights.get("table"))

        return Logits(
            band=Band() if band is None else band,
            mask=mask,
            bias=None if self.positions is None else bias,
            weights=weights,
            query_inputs=tensors,
            key_inputs=key_inputs,
        )

    def _attend_in_blocks(
        self,
        blocks: Blocks,
        heads: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
        indices: tf.Tensor,
        inputs: CallInputs,
    ) -> tf.Tensor:
        """Attends in a batch of B * M blocks, each with only the keys that its window can see.

        `heads` are queries, keys and values, [B, T, heads, H]. Returns the averages of values,
        [B, T, N, H].
        """
        query, key, value = heads
        length: Any = query.shape[1]
        split, split_keys = blocks.split, blocks.split_with_neighbors
        zeros = tf.zeros_like(query[:, :1, 0, 0], tf.int32)  # [B, 1]
        # blocks are padded with index 0, which has to be far from the indices of real positions
        indices, position_ids = indices + _FAR + zeros, inputs.position_ids + zeros
        mask = self.mask.sees(split(indices), split_keys(indices))
        if inputs.segments is not None:
            mask = within_documents(mask, split(inputs.segments), split_keys(inputs.segments))
        averages = self._attend(
            swap_heads(split(query)),
            swap_heads(split_keys(key)),
            swap_heads(split_keys(value)),
            mask=mask,
            bias=self._bias(split(position_ids), split_keys(position_ids), inputs.position_table),
            num_blocks=blocks.count(length),
        )
        return blocks.join(averages, length)


def _indices(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns int32 [1, T], the indices 0, 1, 2, ... along an axis of x, which has T positions."""
    length = x.shape[axis]
    if length is None:
        return tf.range(tf.shape(x)[axis])[None]
    return tf.constant(np.arange(length, dtype=np.int32)[None])  # fewer operations in a loop
