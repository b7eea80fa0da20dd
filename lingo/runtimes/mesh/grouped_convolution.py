"""Refuses convolutions over groups of channels where XLA's partitioner differentiates them wrongly.

In a grouped convolution, such as a depthwise one, an output reads some channels of the input only.
Where a batch is split, and several devices have the same part of it, XLA (of JAX 0.10.2) computes
wrong gradients of such kernels, and says nothing. They are found while a step is traced:
TensorFlow reports each operation that it adds to a graph, in the call of the layer that adds it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.runtimes.layout import Layout, batch_axes


@contextlib.contextmanager
def refuse_grouped_convolutions(layout: Layout) -> Iterator[None]:
    """Raises ParamError if a mesh would differentiate wrongly what is traced inside."""
    num_parts = layout.mesh.size(batch_axes(layout.rules, layout.mesh))
    if not 1 < num_parts < layout.mesh.num_devices:
        yield
        return
    from tensorflow.python.framework import op_callbacks  # TensorFlow's debugger is built on it

    layers: list[str] = []

    def inspect_operation(
        op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if _is_grouped(op_type, inputs):
            layers.append(_calling_layer(inspect.currentframe()))

    op_callbacks.add_op_callback(inspect_operation)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(inspect_operation)
    if layers:
        num = layout.mesh.num_devices
        raise ParamError(
            f"runtime: {layers[0]} convolves channels in groups, and XLA computes wrong gradients"
            f" of its kernel, as {num} devices have {num_parts} different parts of the batch: use"
            f" DepthwiseConv2D of lingo.layers, or a mesh that only splits the batch, such as"
            f" Mesh(data={num})",
            "runtime",
        )


def _is_grouped(op_type: str, inputs: Any) -> bool:
    if op_type == "Conv2D":  # the kernel is [height, width, channels of a group, outputs]
        return inputs[0].shape[-1] != inputs[1].shape[2]
    return op_type == "DepthwiseConv2dNative"


def _calling_layer(frame: FrameType | None) -> str:
    """Returns the innermost layer in whose method a frame is, and that of Keras inside it."""
    inside = ""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Layer):
            return f"{owner}{inside}"
        elif not inside and type(owner).__module__.startswith("keras.src.layers."):
            inside = f": {getattr(owner, 'name', '')} of Keras"
        frame = frame.f_back
    return "a layer"
