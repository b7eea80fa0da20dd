"""Refuses operations that XLA's partitioner (of JAX 0.10.2) computes wrongly, and says nothing.

In a grouped convolution, such as a depthwise one, an output reads some channels of the input only.
Where a batch is split, and several devices have the same part of it, gradients of such kernels are
wrong. Where rows or columns of images are split, so are some gradients of other windows; layers of
lingo avoid these (`lingo.layers.window`). Such operations are found while a step is
traced: TensorFlow reports each that it adds to a graph, in the call of the layer that adds it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.mesh.rules import parts
from lingo.runtimes.layout import Layout, batch_axes

_WINDOWS = {
    *("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D", "MaxPoolV2"),
    *("Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv3DBackpropInputV2"),
    *("ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"),
}
_SAFE = ("lingo.layers.convolution", "lingo.layers.vision.")  # these know of split images


@contextlib.contextmanager
def refuse_operations(layout: Layout) -> Iterator[None]:
    """Raises ParamError if a mesh would compute wrongly what is traced inside."""
    mesh, table = layout.mesh, layout.rules.activations
    num_parts = mesh.size(batch_axes(layout.rules, mesh))
    refuses_groups = 1 < num_parts < mesh.num_devices
    refuses_windows = any(parts(name, table, mesh) > 1 for name in ("depth", "height", "width"))
    if not (refuses_groups or refuses_windows):
        yield
        return
    from tensorflow.python.framework import op_callbacks  # TensorFlow's debugger is built on it

    messages: list[str] = []

    def inspect_operation(
        op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if refuses_groups and _is_grouped(op_type, inputs):
            layer, _ = _calling_layer(inspect.currentframe())
            messages.append(_grouped_message(layer, num_parts, mesh.num_devices))
        elif refuses_windows and (op_type in _WINDOWS or _is_grouped(op_type, inputs)):
            layer, module = _calling_layer(inspect.currentframe())
            # no layer adds gradients: those are of windows that were looked at before
            if module and not module.startswith(_SAFE):
                messages.append(
                    f"runtime: {layer} computes {op_type} of images whose rows or columns are"
                    " split, where XLA computes some gradients wrongly: use layers of lingo, such"
                    " as Conv2D and MaxPool, or a mesh without height and width"
                )

    op_callbacks.add_op_callback(inspect_operation)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(inspect_operation)
    if messages:
        raise ParamError(messages[0], "runtime")


def _grouped_message(layer: str, num_parts: int, num_devices: int) -> str:
    return (
        f"runtime: {layer} convolves channels in groups, and XLA computes wrong gradients"
        f" of its kernel, as {num_devices} devices have {num_parts} different parts of the batch:"
        f" use DepthwiseConv2D of lingo.layers, or a mesh that only splits the batch, such as"
        f" Mesh(data={num_devices})"
    )


def _is_grouped(op_type: str, inputs: Any) -> bool:
    if op_type == "Conv2D":  # the kernel is [height, width, channels of a group, outputs]
        return inputs[0].shape[-1] != inputs[1].shape[2]
    return op_type == "DepthwiseConv2dNative"


def _calling_layer(frame: FrameType | None) -> tuple[str, str]:
    """Returns the innermost layer whose method a frame is in, with Keras' own, and its module."""
    inside = ""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Layer):
            return f"{owner}{inside}", frame.f_globals["__name__"]
        elif not inside and type(owner).__module__.startswith("keras.src.layers."):
            inside = f": {getattr(owner, 'name', '')} of Keras"
        frame = frame.f_back
    return "a layer", ""
