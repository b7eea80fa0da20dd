"""Lifted layers: copies of one layer side by side, along a leading axis that can be sharded.

The stage axis of a pipeline and the expert axis of a mixture are such axes. The layer is written
and called for one copy; `tf.vectorized_map` runs all of them, and annotations inside name the
lifted axis in front of their own.
"""

from __future__ import annotations

from typing import Any

from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.repeat import layer_index
from lingo.lazy import tf


def lift(
    layer: Layer, num: int, *args: Any, axis: str, rows: tf.Tensor | None = None, **inputs: Any
) -> Any:
    """Calls the copies of a repeated layer, each on its own slice of the inputs.

    Args:
        layer: declared by `repeated` with this axis.
        num: number of copies, K.
        *args: [K, ...] tensors, or structures of them.
        axis: logical name of the leading axis.
        rows: int32 [K, B], the global rows of each copy's batch; None: all have the context's.
        **inputs: [K, ...] tensors by name.

    Returns:
        What the layer returns, with a leading axis of K.
    """
    call = context.current()
    given = {"args": args, "inputs": inputs, "call": call.of([layer])}
    given["index"] = layer_index(layer, tf.range(num))
    if rows is not None:
        given["rows"] = rows

    def one(copy: Any) -> Any:
        inner = call.derive(
            rows=copy.get("rows", call.rows),
            lifted=(*call.lifted, axis),
            indices={**call.indices, layer.path: copy["index"]},
            **copy["call"],
        )
        with context.entered(inner):
            y = layer(*copy["args"], **copy["inputs"])
        return y, inner.sides.summed(), inner.sides.stacked()

    y, summed, kept = tf.vectorized_map(one, given, fallback_to_while_loop=False)
    call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), summed))
    call.sides.add(kept)
    return y
