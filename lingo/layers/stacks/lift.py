"""Calls copies of one layer, each on its own inputs. The layer is written for one copy.

`vmap_layer` vectorizes the copies with `tf.vectorized_map` along a leading axis that can be
sharded, such as the stages of a pipeline or the experts of a mixture. Sharding annotations inside
the layer then apply to tensors with this axis in front. `call_copies` unrolls: each copy has its
own computation in the program, and the copies' inputs may have different shapes.

Axes: N copies, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.stacks.repeat import layer_index
from lingo.ops.scan import is_for_shapes, repeat_result
from lingo.ops.shape import expand_like


def vmap_layer(
    layer: Layer,
    num: int,
    *args: Any,
    axis: str,
    rows: tf.Tensor | None = None,
    index: tf.Tensor | None = None,
    counts: tf.Tensor | None = None,
    common: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> Any:
    """Calls the copies of a layer, vectorized, each on its own slice of the inputs.

    Returns the copies' results, stacked along a leading axis of size N.

    Args:
        layer: a layer that was declared by `copies`.
        num: N, the number of copies.
        *args: [N, ...] tensors, or structures of them; each copy gets its slice.
        axis: logical axis of the copies, as in `copies`.
        rows: int32 [N, B], the global index of each example in each copy's batch; None: all copies
            have the context's `rows`.
        index: int32 [N], the index of each copy in the layer's path; None: the N copies in order.
        counts: bool [N], whether to keep the side outputs of each copy; None: all are kept.
        common: keyword arguments that all copies share.
        **inputs: [N, ...] tensors, keyword arguments; each copy gets its slice.
    """
    call = context.current()
    slices = {"args": args, "inputs": inputs, "call": call.of([layer])}
    slices["index"] = layer_index(layer, tf.range(num)) if index is None else index
    if rows is not None:
        slices["rows"] = rows

    def call_copy(copy: Any) -> Any:
        inner = call.derive(
            rows=copy.get("rows", call.rows),
            mapped_axes=(*call.mapped_axes, axis),
            indices={**call.indices, layer.path: copy["index"]},
            **copy["call"],
        )
        with context.enter_call(inner):
            y = layer(*copy["args"], **copy["inputs"], **(common or {}))
        return y, inner.sides.additive_fields(), inner.sides.per_layer_fields()

    def mask(value: tf.Tensor) -> tf.Tensor:
        if counts is None:
            return value
        return tf.where(expand_like(counts, value), value, tf.zeros_like(value))

    if is_for_shapes():
        copy = call_copy(tf.nest.map_structure(lambda v: v[0], slices))
        y, additive, per_layer = repeat_result(copy, num)
    else:
        y, additive, per_layer = tf.vectorized_map(call_copy, slices, fallback_to_while_loop=False)
    additive, per_layer = tf.nest.map_structure(mask, (additive, per_layer))
    call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), additive))
    call.sides.add(per_layer)
    return y


def call_copies(
    layer: Layer, inputs: Sequence[tf.Tensor], *, rows: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Calls the copies of a layer one by one, unrolled; returns the list of their results.

    `inputs` has a tensor [B, ...] for each copy, and `rows` an int32 [B] for each copy with the
    global index of each example. B, and other sizes that no weight depends on, may differ between
    copies.
    """
    call, num, outputs, per_layer = context.current(), len(inputs), [], []
    values = call.of([layer])
    # unstack does not copy, and its gradient is a single stack
    slices = zip(*(tf.unstack(v, num) for v in tf.nest.flatten(values)), strict=True)
    for i, tensors in enumerate(slices):
        inner = call.derive(
            rows=rows[i],
            indices={**call.indices, layer.path: layer_index(layer, i)},
            **tf.nest.pack_sequence_as(values, tensors),
        )
        with context.enter_call(inner):
            outputs.append(layer(inputs[i]))
        call.sides.add(inner.sides.additive_fields())
        per_layer.append(inner.sides.per_layer_fields())
    call.sides.add(tf.nest.map_structure(lambda *v: tf.stack(v), *per_layer))
    return outputs


def one_of(layer: Layer, index: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Calls the copy `index` of a layer, an int32 scalar, on x [B, ...].

    This reads the weights of this copy only.
    """
    call = context.current()
    inner = call.derive(
        indices={**call.indices, layer.path: layer_index(layer, index)},
        **tf.nest.map_structure(lambda v: v[index], call.of([layer])),
    )
    with context.enter_call(inner):
        return layer(x)
