"""Sharding annotations in TensorFlow's graph: the split of a tensor as an operation for XLA.

The operation `XlaSharding` passes a tensor on unchanged. XLA's partitioner obeys its attribute, an
`OpSharding` (GSPMD, Xu et al. 2021, sec. 3.1), and infers shardings for everything in between. Its
gradient has the same sharding.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import Rules
from lingo.layers.layer import Layer
from lingo.learner.placement import Placement
from lingo.learner.state import Learner, Slots, TrainState
from lingo.learner.step import train_step
from lingo.mesh.rules import Table, parts, split
from lingo.mesh.split import Split, whole
from lingo.mesh.tiles import Tiles, tiles
from lingo.mesh.topology import Topology
from lingo.mesh.weight_rows import WeightRows
from lingo.optim.optimizer import Weight
from lingo.optim.row_columns import RowColumns, flatten, unflatten
from lingo.runtimes.layout import Layout, batch_axes

T = TypeVar("T")

_WINDOWS = {
    *("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D", "MaxPoolV2"),
    *("Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv3DBackpropInputV2"),
    *("ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"),
}
_SAFE = ("lingo.layers.convolution", "lingo.layers.vision.")  # these handle split images


def with_sharding(x: tf.Tensor, split: Split, mesh: Topology) -> tf.Tensor:
    """Returns a tensor of any shape annotated with the split of its axes.

    Within `vectorized_map` the mapped axes, which `x` lacks, come first in the split.
    """
    from tensorflow.compiler.tf2xla.python import xla  # not among the public operations

    attribute: Any = sharding(tiles(split, mesh))
    return xla.sharding(x, sharding=attribute)


def sharding(assignment: Tiles) -> bytes:
    """Returns a tile assignment as a serialized `OpSharding`, the format of XLA's operations."""
    from tensorflow.compiler.xla.xla_data_pb2 import OpSharding

    if assignment.is_replicated:
        return OpSharding(type=OpSharding.REPLICATED).SerializeToString()
    message = OpSharding(
        type=OpSharding.OTHER,
        tile_assignment_dimensions=assignment.tile_assignment_dimensions,
        replicate_on_last_tile_dim=assignment.replicate_on_last_tile_dim,
    )
    if (iota := assignment.iota()) is not None:  # a few numbers, even for thousands of devices
        message.iota_reshape_dims.extend(iota.dims)
        message.iota_transpose_perm.extend(iota.permutation)
    else:
        message.tile_assignment_devices.extend(assignment.tile_assignment_devices)
    return message.SerializeToString()


class AxisRules(Rules):
    """Annotates activations, and weights where layers read them, as the rules map their axes."""

    def __init__(self, layout: Layout) -> None:
        self._mesh, self._rules = layout.mesh, layout.rules

    def activation(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        try:
            return self._with_sharding(x, axes, self._rules.activations)
        except ParamError as error:
            where = tf.get_current_name_scope().removeprefix("local/")
            raise ParamError(f"runtime: {where}: {error}", "runtime") from None

    def weight(self, x: tf.Tensor, axes: tuple[str | None, ...]) -> tf.Tensor:
        return self._with_sharding(x, axes, self._rules.weights)

    def parts(self, axis: str) -> int:
        return parts(axis, self._rules.activations, self._mesh)

    def copies(self, axes: Iterable[str]) -> int:
        return self._mesh.num_devices // math.prod(self.parts(axis) for axis in axes)

    def _with_sharding(self, x: tf.Tensor, axes: Sequence[str | None], table: Table) -> tf.Tensor:
        num_mapped = len(axes) - len(x.shape)
        shape = [
            *[0] * num_mapped,
            *(size or 0 for size in x.shape),
        ]  # mapped sizes are unknown here
        cut = split(shape, axes, table, self._mesh, uneven=True, num_mapped=num_mapped)
        return with_sharding(x, cut, self._mesh)


class MeshPlacement(Placement):
    """Annotates the tensors of a training step with the splits of a layout."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(compiled=True)
        self.rules, self._layout = AxisRules(layout), layout
        self.keeps_parts = layout.rest != layout.read

    def join_examples(self, values: Any) -> Any:
        mesh = self._layout.mesh  # the batch is one tensor already; each device gets all of it
        return tf.nest.map_structure(lambda x: with_sharding(x, whole(len(x.shape)), mesh), values)

    def compute(self, function: Callable[[], T]) -> T:
        with refuse_operations(self._layout):
            return function()

    def weights_for_layers(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        layout, copies = self._layout, dict(weights)
        for where, value in weights.items():
            if layout.rest[where] != layout.read[where]:
                # As integers: XLA could widen bfloat16 for the exchange, or skip the rounding.
                bits = tf.bitcast(tf.cast(value, tf.bfloat16), tf.uint16)
                bits = with_sharding(bits, layout.rest[where], layout.mesh)
                whole = tf.bitcast(self._gather(bits, where), tf.bfloat16)
                copies[where] = tf.cast(whole, tf.float32)
        return copies

    def update_weight(self, weight: Weight) -> Weight:
        if (rows := self._layout.rows[weight.path]) is None:
            return weight
        return weight._replace(row_columns=RowColumns(rows, rows.row_size))

    def shard_for_update(self, values: Mapping[str, Any]) -> dict[str, Any]:
        layout, split = self._layout, {}
        for where, value in values.items():
            rows = layout.rows[where]
            value = value if rows is None else flatten(value, rows)
            split[where] = with_sharding(value, layout.update[where], layout.mesh)
        return split

    def shard_for_storage(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(values) if self.keeps_parts else self.gather_weights(values)

    def gather_weights(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {where: self._gather(value, where) for where, value in values.items()}

    def _gather(self, value: Any, where: str) -> Any:
        """Returns a weight or average, of any type, in its own shape, split as layers read it."""
        layout = self._layout
        if (rows := layout.rows[where]) is not None:
            value = self._gather_rows(value, layout.update[where], rows)
        read = layout.read[where] if where in layout.read else layout.state[where]
        return with_sharding(value, read, layout.mesh)

    def slots_for_update(self, slots: Slots) -> Slots:
        return self._map_factors(
            slots, lambda k, n, rows: self._gather_rows(slots[k][n], self._layout.slots[k][n], rows)
        )

    def slots_for_storage(self, slots: Slots) -> Slots:
        return self._map_factors(slots, lambda k, n, rows: flatten(slots[k][n], rows))

    def _map_factors(self, slots: Slots, function: Callable[[str, str, WeightRows], Any]) -> Slots:
        """Returns slots; each slot in `factor_rows` is replaced by `function(path, name, rows)`."""
        factors = self._layout.factor_rows
        return {
            k: {
                n: value if (rows := factors[k].get(n)) is None else function(k, n, rows)
                for n, value in own.items()
            }
            for k, own in slots.items()
        }

    def _gather_rows(self, value: Any, split: Split, rows: WeightRows) -> Any:
        """Returns a tensor in its own shape, from rows that devices gather in one exchange."""
        whole_rows = Split((*split.storage().axes[:-1], ()))
        return unflatten(with_sharding(value, whole_rows, self._layout.mesh), rows)

    def state(self, state: TrainState) -> TrainState:
        """Returns a state, of any shapes, annotated with the splits that it has between steps.

        Without annotations the partitioner may choose other splits. For example, it may split
        weights for layers as it does for the update, and then gather them layer by layer.
        """
        mesh = self._layout.mesh
        annotated = self._layout.map(lambda x, split: with_sharding(x, split, mesh), state)
        return annotated._replace(step=state.step)


def sharded_step(
    learner: Learner, state: TrainState, batch: Mapping[str, Any], placement: MeshPlacement
) -> tuple[TrainState, dict[str, Any]]:
    """Does `train_step`, with the state annotated before and after it."""
    after, report = train_step(learner, placement.state(state), batch, placement)
    return placement.state(after), report


@contextlib.contextmanager
def refuse_operations(layout: Layout) -> Iterator[None]:
    """Raises ParamError for operations that XLA's partitioner (of JAX 0.10.2) computes wrongly.

    In a grouped convolution, such as a depthwise one, an output reads only some channels of the
    input. If a batch is split and several devices have the same part of it, the gradients of such
    kernels are wrong. If rows or columns of images are split, some gradients of other window
    operations are wrong; lingo's layers avoid these (`lingo.layers.window`). The operations are
    found while a step is traced inside this context: TensorFlow reports every operation that is
    added to a graph, during the call of the layer that adds it.
    """
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
            # gradients have no layer; their forward operations were inspected
            if module and not module.startswith(_SAFE):
                messages.append(
                    f"runtime: {layer} computes {op_type} of images whose rows or columns are"
                    " split, and XLA computes some of their gradients wrongly: use lingo's layers,"
                    " such as Conv2D and MaxPool, or a mesh without height and width"
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
        f" of its kernel if {num_devices} devices have {num_parts} different parts of the batch:"
        f" use DepthwiseConv2D of lingo.layers, or a mesh that only splits the batch, such as"
        f" Mesh(data={num_devices})"
    )


def _is_grouped(op_type: str, inputs: Any) -> bool:
    if op_type == "Conv2D":  # the kernel is [height, width, channels of a group, outputs]
        return inputs[0].shape[-1] != inputs[1].shape[2]
    return op_type == "DepthwiseConv2dNative"


def _calling_layer(frame: FrameType | None) -> tuple[str, str]:
    """Returns the name and module of the innermost lingo layer in a call stack.

    If a Keras layer was called inside it, its name follows the layer's.
    """
    inside = ""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Layer):
            return f"{owner}{inside}", frame.f_globals["__name__"]
        elif not inside and type(owner).__module__.startswith("keras.src.layers."):
            inside = f": {getattr(owner, 'name', '')} of Keras"
        frame = frame.f_back
    return "a layer", ""
