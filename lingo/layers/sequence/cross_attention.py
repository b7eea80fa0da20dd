"""Cross attention: positions attend to a memory, such as an encoder's output.

Axes: B batch, T query positions, C positions of a chunk, S memory positions, D model width,
N heads, K heads of keys and values, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.sequence.dot_product import DotProductAttention, swap_heads, within_documents
from lingo.ops.blockwise_attention import Logits


class CrossAttention(DotProductAttention):
    """Lets each position attend to the memory of its document (Vaswani et al. 2017, sec. 3.2.3).

    There is no position bias between queries and memory. The weights are described in
    `DotProductAttention`, but here `w_key` and `w_value` are [width of the memory, K, H].

    Caches:
        memory_key, memory_value: [K, S, H], set by the step that gets the memory.
        memory_key_scale, memory_value_scale: float32 [K, S, 1], with `cache_dtype`.
    """

    memory_dim: int | None = None  # width of the memory; None: dim

    def setup(self) -> None:
        super().setup()
        for name in ("memory_key", "memory_value"):
            self._declare_cache(name, 0)  # 0: the step that gets the memory sets the length

    @property
    def _source_dim(self) -> int:
        return self.p.dim if self.p.memory_dim is None else self.p.memory_dim

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Lets each position attend to the memory of its document.

        Raises ValueError if `inputs.memory` is None.

        Args:
            x: [B, T, D], any float type.
            inputs: `memory`, `memory_segments` and `segments`. Without `segments` each example is
                one document, which sees all of its memory except padding.

        Returns:
            [B, T, D], in the layer's dtype; finite at padding, too.
        """
        if inputs.memory is None:
            raise ValueError(f"{self.path or type(self).__name__} needs the input `memory`")
        return self._attend_to_memory(x, *self._project_memory(inputs.memory), inputs)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Computes the next positions, [B, C, D]; only the first step computes keys and values.

        x is [B, C, D], any float type; `index` is ignored. `inputs` must have `memory` in the first
        step, and `memory_segments`, if the memory has padding, in every step.
        """
        inputs = inputs._replace(segments=None)
        names = ("memory_key", "memory_value")
        parts: dict[str, tf.Tensor] = {}
        if inputs.memory is not None:
            for name, heads in zip(names, self._project_memory(inputs.memory), strict=True):
                parts |= self._to_cache(name, heads)
            for part, value in parts.items():
                self.new_cache(part, value)
        else:  # the caches stay as they are
            parts = {part: getattr(self, part) for part in self._caches}
        key, value = (self._from_cache(name, parts) for name in names)
        return self._attend_to_memory(x, key, value, inputs)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        """Returns the operations of one call for x of shape [B, T, D].

        `memory_length` is S, the number of positions of the memory; None: T.
        """
        batch, length, _ = shape
        num_keys = length if memory_length is None else memory_length
        queries, keys, pairs = batch * length, batch * num_keys, batch * length * num_keys
        return self._flops(queries=queries, keys=keys, pairs=pairs)

    def _project_memory(self, memory: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Projects a memory [B, S, width of the memory] to keys and values, [B, K, S, H] each."""
        key, value = self._heads("key", memory), self._heads("value", memory)
        if self.key_norm is not None:
            key = self.key_norm(key)
        return swap_heads(key), swap_heads(value)

    def _attend_to_memory(
        self, x: tf.Tensor, key: tf.Tensor, value: tf.Tensor, inputs: CallInputs
    ) -> tf.Tensor:
        query = self._heads("query", x)
        if self.query_norm is not None:
            query = self.query_norm(query)
        query, key = self.operands("logits", query=query, key=key)
        (value,) = self.operands("averages", value=value)
        if self.is_blockwise(x.shape[1], key.shape[2]):
            logits = _logits(inputs)
            averages = self._attend_blockwise(swap_heads(query), key, value, logits=logits)
            return self._output(averages)
        mask = within_documents(None, inputs.segments, inputs.memory_segments)
        if inputs.segments is None and inputs.memory_segments is not None:
            mask = (inputs.memory_segments > 0)[:, None]
        return self._output(self._attend(swap_heads(query), key, value, mask=mask))


def _logits(inputs: CallInputs) -> Logits:
    """Returns the mask of the memory in the form that `attend_blockwise` takes."""
    if inputs.memory_segments is None:
        return Logits()
    key_inputs, queries = {"segment": inputs.memory_segments}, inputs.segments

    def mask(query: Any, key: Any) -> tf.Tensor | None:
        if queries is None:
            return (key["segment"] > 0)[:, None]
        return within_documents(None, query["segment"], key["segment"])

    query_inputs = {} if queries is None else {"segment": queries}
    return Logits(mask=mask, query_inputs=query_inputs, key_inputs=key_inputs)
