"""Self-attention: positions of a document attend to each other.

Axes: B batch, T query positions, S key positions, D model width, N heads, K heads of keys and
values, H head width, C positions of a chunk, M blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
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


class Heads(NamedTuple):
    """The heads of a call, in a layout with positions before or after the heads."""

    query: tf.Tensor  # [B, T, N, H] or [B, N, T, H]
    key: tf.Tensor  # [B, T, K, H] or [B, K, T, H]
    value: tf.Tensor  # like `key`
    by_position: tf.Tensor | None = None  # queries of a bias that reads them; None: no such bias

    def map(self, change: Callable[[tf.Tensor], tf.Tensor]) -> Heads:
        extra = None if self.by_position is None else change(self.by_position)
        return Heads(change(self.query), change(self.key), change(self.value), extra)


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
            dim=p.dim,
            num_heads=p.num_heads,
            head_dim=self._head_dim,
            bidirectional=self.mask.sees_later,
        )
        if p.logit_cap is not None and self._query_positions is not None:
            raise ParamError(
                f"logit_cap={p.logit_cap} with positions={type(self.positions).__name__}, whose"
                " bias is a part of the logits: take logit_cap=None, or other positions"
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
            return self._output(self._attend_by_tiles(heads.map(swap_heads), indices, inputs))
        mask = within_documents(self.mask.sees(indices, indices, inputs.prefix), segments, segments)
        positions = self._bias_positions(indices, inputs)
        query, key, value, by_position = heads.map(swap_heads)
        bias = self._bias(positions, positions, inputs.position_table, by_position)
        return self._output(self._attend(query, key, value, mask=mask, bias=bias))

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
        query, key, value, by_position = self._project(x, position_ids).map(swap_heads)
        key, value = self._update_caches(key, value, index)
        key_positions, reach, prefix = _indices(key, 2), self.mask.reach, inputs.prefix
        if reach is not None:
            key_positions += index - reach.num_before
        ids_of_keys = position_ids[:, :1] - index + key_positions
        bias = self._bias(position_ids, ids_of_keys, inputs.position_table, by_position)
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
        flops = self._flops(queries=batch * length, keys=batch * length, pairs=batch * pairs)
        if (positions := self._query_positions) is None:
            return flops
        if blocks is None:
            return flops + positions.flops(shape)
        rows = (batch * blocks.count(length), blocks.size, self.p.dim)
        return flops + positions.flops(rows, memory_length=blocks.num_keys)

    @property
    def _changes_queries_in_float32(self) -> bool:
        return isinstance(self.positions, Rotary) or super()._changes_queries_in_float32

    @property
    def _query_positions(self) -> AttentionPositions | None:
        """The position encoding if its bias depends on the queries, else None."""
        positions = self.positions
        return None if positions is None or not positions.reads_queries else positions

    def _project(self, x: tf.Tensor, position_ids: tf.Tensor) -> Heads:
        """Projects x [B, T, D] to queries, keys and values, [B, T, heads, H] each.

        Queries and keys are rotated by `position_ids`, int32 [B or 1, T], if `positions` rotates.
        """
        query, key, value = (self._heads(name, x) for name in ("query", "key", "value"))
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.positions is not None:
            query, key = self.positions.rotate([query, key], position_ids)
        by_position = None
        if (positions := self._query_positions) is not None:
            query, by_position = positions.split_queries(query)
        query, key = self.operands("logits", query=query, key=key)
        (value,) = self.operands("averages", value=value)
        return Heads(query, key, value, by_position)

    def _bias(
        self,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        table: tf.Tensor | None,
        by_position: tf.Tensor | None = None,
    ) -> tf.Tensor | None:
        """Returns the bias of the logits, float32 [B or 1, N, T, S]; None: no bias.

        `by_position`, [B, N, T, H], are the queries of a bias that reads them.
        """
        if self.positions is None:
            return None
        if by_position is not None:
            query = self._scale_query(by_position)
            return self.positions.query_bias(query, query_positions, key_positions)
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
        places = self._bias_positions(indices, inputs)
        tensors = {"index": indices, "position": places, "segment": inputs.segments}
        tensors = {name: x for name, x in tensors.items() if x is not None}
        key_inputs, weights = dict(tensors), {}
        if inputs.prefix is not None:
            key_inputs["prefix"] = inputs.prefix
        positions = None if self._query_positions is not None else self.positions
        if positions is not None:
            weights = {"layer": dict(call.of([positions])["weights"])}
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
            bias=None if positions is None else bias,
            weights=weights,
            query_inputs=tensors,
            key_inputs=key_inputs,
        )

    def _attend_by_tiles(self, heads: Heads, indices: tf.Tensor, inputs: CallInputs) -> tf.Tensor:
        """Returns the averages of values, [B, T, N, H], computed block by block of the logits.

        `heads` have the layout [B, heads, T, H]. A bias that reads queries becomes further features
        of queries and keys.
        """
        query, key, value, by_position = heads
        features, positions = None, self._query_positions
        if positions is not None and by_position is not None:
            places = self._bias_positions(indices, inputs)
            features = (
                positions.query_features(self._scale_query(by_position), places),
                positions.key_features(places) * tf.ones_like(key[:, :, :, :1]),
            )
        logits = self._logits(indices, inputs)
        return self._attend_blockwise(query, key, value, logits=logits, features=features)

    def _attend_in_blocks(
        self,
        blocks: Blocks,
        heads: Heads,
        indices: tf.Tensor,
        inputs: CallInputs,
    ) -> tf.Tensor:
        """Attends in a batch of B * M blocks, each with only the keys that its window can see.

        `heads` have the layout [B, T, heads, H]. Returns the averages of values, [B, T, N, H].
        """
        query, key, value, by_position = heads
        length: Any = query.shape[1]
        split, split_keys = blocks.split, blocks.split_with_neighbors
        zeros = tf.zeros_like(query[:, :1, 0, 0], tf.int32)  # [B, 1]
        # blocks are padded with index 0, which has to be far from the indices of real positions
        indices, position_ids = indices + _FAR + zeros, inputs.position_ids + zeros
        mask = self.mask.sees(split(indices), split_keys(indices))
        if inputs.segments is not None:
            mask = within_documents(mask, split(inputs.segments), split_keys(inputs.segments))
        positions, table = (split(position_ids), split_keys(position_ids)), inputs.position_table
        if by_position is not None:
            by_position = swap_heads(split(by_position))
            if self.mask.has_consecutive_ids:  # distances are the same in all blocks
                first = blocks.size if blocks.before else 0
                places = np.arange(blocks.num_keys, dtype=np.int32)[None]
                ids = tf.constant(places[:, first : first + blocks.size]), tf.constant(places)
                positions = ids
        averages = self._attend(
            swap_heads(split(query)),
            swap_heads(split_keys(key)),
            swap_heads(split_keys(value)),
            mask=mask,
            bias=self._bias(*positions, table, by_position),
            num_blocks=blocks.count(length),
        )
        return blocks.join(averages, length)


def _indices(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns int32 [1, T], the indices 0, 1, 2, ... along an axis of x, which has T positions."""
    length = x.shape[axis]
    if length is None:
        return tf.range(tf.shape(x)[axis])[None]
    return tf.constant(np.arange(length, dtype=np.int32)[None])  # fewer operations in a loop
