"""A mesh of TPU cores: TensorFlow's TPU runtime partitions and runs the same annotated step.

All cores compute one replica, with a sharded state:

    batch = parts of the batch, each on the host of its core
    strategy.run(steps)(handles of the state, batch):      # one program; XLA partitions it
        state = read the handles
        state, reports = scan(annotated train step, state, batches)
        write the handles

TensorFlow joins parts of a tensor by `TPUPartitionedInputV2`, and its TPU compiler splits them
again by the sharding: part i is for the i-th device of the tile assignment, which already holds it.
So the whole value of a sharded variable is never on one device.

Axes: K steps, B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.mesh.split import Split, whole
from lingo.mesh.tiles import Tiles, tiles
from lingo.mesh.topology import Topology
from lingo.mesh.weight_rows import read_rows, split_rows, weight_rows
from lingo.ops.scan import scan
from lingo.runtimes.layout import Layout, batch_axes, pad_part
from lingo.runtimes.mesh.annotation import MeshPlacement
from lingo.runtimes.program import Arrays, Computation, Feed, Program
from lingo.runtimes.runtime import matmul_flops_per_second
from lingo.runtimes.sharded import Sharded
from lingo.runtimes.tpu.cores import Cores, connect

Parts = dict[str, list[Any]]
"""A batch in parts: name -> the part of each core, in the order of the tile assignment."""


class TpuMesh(Sharded):
    """Trains on a mesh of all cores of a TPU: the product of its axes, from `data` to `stage`.

    Fields and annotations are those of `Mesh`; `TPUStrategy` runs the step on all cores as one
    replica, which XLA partitions. The innermost axis is on neighbouring cores. One process feeds
    all hosts, so no other processes are launched. The code is tested only as far as possible
    without a TPU; it has not run on one yet.
    """

    tpu: str = "local"  # where it is: a name, a grpc:// address, or "local": in this machine

    def make_devices(self, num_devices: int) -> None:
        raise ParamError(
            f"devices={num_devices}: {type(self).__name__} computes on the cores of a TPU, and none"
            " can be made: runtime=Mesh computes on virtual devices"
        )

    def start(self, learner: Learner, state: TrainState) -> Program:
        cores = connect(self.p.tpu, self.topology())
        return TpuMeshProgram(learner, state, self.layout(learner), cores)

    def matmul_flops_per_second(self, dtype: str) -> float:
        cores = connect(self.p.tpu, self.topology())
        return matmul_flops_per_second(dtype, cores.devices)


class TpuMeshProgram(Program):
    """Runs steps in a loop on the cores; the host feeds them and reads their reports."""

    def __init__(self, learner: Learner, state: TrainState, layout: Layout, cores: Cores) -> None:
        """Puts the first state, as for `load`, on the cores; `layout` is which part each holds."""
        self._layout, self._cores = layout, cores
        super().__init__(learner, MeshPlacement(layout))
        self._variables = layout.map(self._make_variables, state)
        self._step = tf.function(self._scan_step, autograph=False)

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        batches: Parts = {}
        for name, (shape, dtype) in specs.items():
            cut = self._batch_cut((num_steps, *shape), rows_axis=1)
            batches[name] = [tf.TensorSpec(cut.part_shape, dtype) for _ in cut.devices]
        self._train.get_concrete_function(batches, specs["rows"][0][0])

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it."""
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        state = tf.nest.map_structure(
            lambda v: tf.TensorSpec(v.cut.inside, v.dtype), self._variables
        )
        return self._step.get_concrete_function(tf.TensorSpec([], tf.int32), state, batch).graph

    def state(self, *, alone: bool = False) -> TrainState:
        return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

    def load(self, state: TrainState) -> None:
        tf.nest.map_structure(lambda v, value: v.load(value), self._variables, state)

    def compile_steps(self) -> Any:
        def steps(batches: Parts, num_rows: int) -> dict[str, Any]:
            return self._run(self._train_steps, batches, num_rows, 1)

        return tf.function(steps, autograph=False)

    def compile_call(self, computation: Computation) -> Any:
        def call(weights: WhichWeights, parts: Parts, num_rows: int, *args: Any) -> Any:
            def body(handles: Any, batch: dict[str, Any]) -> Any:
                state = self._place.state_for_evaluation(self._read(handles), weights)
                return self._compute(computation, state, batch, *args)

            return self._run(body, parts, num_rows, 0)

        return tf.function(call, autograph=False)

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        parts: Parts = {}
        for name, value in batch.items():
            cut = self._batch_cut(value.shape, rows_axis=axis)
            parts[name] = put_parts(tf.constant, cut, value, self._cores.hosts)
        return Feed((parts, batch["rows"].shape[axis]))

    # ---- around the program of the cores

    def _make_variables(self, value: Any, split: Split) -> ShardedVariable:
        cut = Cut(np.shape(value), split, self._layout.mesh)
        return ShardedVariable(cut, value, self._cores.devices)

    def _batch_cut(self, shape: tuple[int, ...], *, rows_axis: int) -> Cut:
        axes = batch_axes(self._layout.rules, self._layout.mesh)
        return Cut(shape, whole(len(shape)).cut(rows_axis, axes), self._layout.mesh)

    def _run(
        self,
        body: Callable[[Any, dict[str, Any]], Any],
        parts: Parts,
        num_rows: int,
        rows_axis: int,
    ) -> Any:
        """Runs a function of (handles of the state, batch) on the cores and returns its result."""
        cuts = {}
        for name, own in parts.items():
            shape = own[0].shape.as_list()
            shape[rows_axis] = num_rows
            cuts[name] = self._batch_cut(tuple(shape), rows_axis=rows_axis)

        def replica(handles: Any, batch: Mapping[str, tf.Tensor]) -> Any:
            return body(handles, {k: remove_padding(value, cuts[k]) for k, value in batch.items()})

        handles = tf.nest.map_structure(lambda v: v.handle(), self._variables)
        batch = {name: join_parts(own, cuts[name]) for name, own in parts.items()}
        # Sizes are static; by default TensorFlow would add code that pads each input.
        options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
        return self._cores.strategy.run(replica, (handles, batch), options=options)

    # ---- in the program of the cores

    def _train_steps(self, handles: Any, batches: dict[str, Any]) -> dict[str, Any]:
        num_steps = batches["rows"].shape[0]
        state, reports = scan(self._step, self._read(handles), batches, num_steps)
        tf.nest.map_structure(lambda v, h, new: v.write(h, new), self._variables, handles, state)
        return reports

    def _read(self, handles: Any) -> TrainState:
        """Returns the state as tensors."""
        return tf.nest.map_structure(lambda v, h: v.read(h), self._variables, handles)


# ---- tensors in parts on the cores


class Cut:
    """A tensor's parts, in the order of its tile assignment: row-major, copies next to each other.

    `padded` is the shape of all parts together; elements beyond `shape` are zero. The program has
    tensors of the shape `inside`: `shape`, or `padded` if they are in rows.
    """

    def __init__(self, shape: Sequence[int], split: Split, mesh: Topology) -> None:
        self.shape, self.padded = tuple(shape), split.padded_shape(shape, mesh)
        self.part_shape, self.tiles = split.part_shape(shape, mesh), tiles(split, mesh)
        self._rows = weight_rows(shape, split, mesh)
        self.inside = self.shape if self._rows is None else self.padded
        rank = len(self.padded)
        self._tiles = [tile[:rank] for tile in np.ndindex(self.tiles.tile_assignment_dimensions)]

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of the device that has each part."""
        return self.tiles.tile_assignment_devices

    def parts(self, value: Any) -> list[np.ndarray]:
        """Returns the part [*part_shape] of each of `devices`; copies are the same object.

        `value` is [*shape] of any dtype; it may be an object that is read slice by slice.
        """
        different = dict.fromkeys(self._tiles)
        parts = {tile: self._part(value, self._index(tile)) for tile in different}
        return [parts[tile] for tile in self._tiles]

    def _part(self, value: Any, index: tuple[slice, ...]) -> np.ndarray:
        if self._rows is not None:
            return read_rows(value, index, self._rows)
        return pad_part(value, index, self.part_shape)

    def whole(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the tensor [*shape] of its parts; if a part has copies, it reads the first.

        Parts are TensorFlow's tensors or variables [*part_shape] in the order of `devices`.
        """
        first = dict(zip(reversed(self._tiles), reversed(parts), strict=True))
        value = np.empty(self.padded, parts[0].dtype.as_numpy_dtype)
        for tile, part in first.items():
            value[self._index(tile)] = part.numpy()
        if self._rows is None:
            return value[tuple(map(slice, self.shape))]
        tensor = np.empty(self.shape, value.dtype)
        every = tuple(map(slice, [0] * value.ndim, value.shape))
        for index, elements in split_rows(value, every, self._rows, self.shape):
            tensor[index] = elements
        return tensor

    def _index(self, tile: tuple[int, ...]) -> tuple[slice, ...]:
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(tile, self.part_shape, strict=True))


class ShardedVariable:
    """A variable with a part on each core."""

    def __init__(self, cut: Cut, value: Any, devices: Sequence[str]) -> None:
        """Puts its first value, [*cut.shape], on the cores; arguments as for `put_parts`."""
        self.cut = cut
        self._parts = put_parts(tf.Variable, cut, value, devices)

    def handle(self) -> tf.Tensor:
        """Returns the scalar handle for `read` and `write`; call it outside of their program."""
        return join_parts([part.handle for part in self._parts], self.cut)

    def read(self, handle: tf.Tensor) -> tf.Tensor:
        """Returns the value, [*cut.inside]."""
        return remove_padding(
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype), self.cut
        )

    def write(self, handle: tf.Tensor, value: tf.Tensor) -> None:
        """Assigns a value, [*cut.inside] of type `dtype`."""
        if self.cut.inside != self.cut.padded:
            sizes = zip(self.cut.padded, self.cut.inside, strict=True)
            value = tf.pad(value, [(0, padded - size) for padded, size in sizes])
        value = _with_sharding(value, self.cut.tiles, use_sharding_op=True)
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def load(self, value: Any) -> None:
        """Assigns a value from the host, [*cut.shape] of type `dtype`."""
        for variable, part in zip(self._parts, self.cut.parts(value), strict=True):
            variable.assign(part)

    def numpy(self) -> np.ndarray:
        """Returns the value on the host, [*cut.shape]."""
        return self.cut.whole(self._parts)

    @property
    def dtype(self) -> tf.DType:
        """The type of the elements."""
        return self._parts[0].dtype


def put_parts(
    make: Callable[[Any], Any], cut: Cut, value: Any, devices: Sequence[str]
) -> list[Any]:
    """Returns the parts of a tensor in tile order, each made on its device.

    `make` is `tf.constant` or `tf.Variable`. `value`, [*cut.shape] of any dtype, may be read slice
    by slice; `devices` are TensorFlow's names of the devices of the mesh.
    """
    parts = []
    for device, part in zip(cut.devices, cut.parts(value), strict=True):
        with tf.device(devices[device]):
            parts.append(make(part))
    return parts


def join_parts(parts: Sequence[tf.Tensor], cut: Cut) -> tf.Tensor:
    """Returns the tensor [*cut.padded], or the handle of such a variable, of all parts together.

    Parts are tensors [*cut.part_shape], or handles of such variables, in tile order.
    """
    dims = [] if cut.tiles.is_replicated else list(cut.tiles.tile_assignment_dimensions)
    tensor = tf.raw_ops.TPUPartitionedInputV2(inputs=list(parts), partition_dims=dims)
    return _with_sharding(tensor, cut.tiles)


def remove_padding(value: tf.Tensor, cut: Cut) -> tf.Tensor:
    """Returns a tensor [*cut.padded] without its padding, as [*cut.inside]."""
    return value if cut.inside == cut.padded else value[tuple(map(slice, cut.inside))]


def _with_sharding(x: tf.Tensor, tiles: Tiles, *, use_sharding_op: bool = False) -> Any:
    """Returns a tensor with a sharding that names every device, as the TPU compiler reads it.

    Without `use_sharding_op`, the operation that made `x` gets the sharding as an attribute.
    """
    from tensorflow.python.compiler.xla.experimental import xla_sharding

    if tiles.is_replicated:
        return xla_sharding.replicate(x, use_sharding_op=use_sharding_op)
    make = xla_sharding.partial_tile if tiles.replicate_on_last_tile_dim else xla_sharding.tile
    return make(x, tiles.tile_assignment, use_sharding_op=use_sharding_op)
