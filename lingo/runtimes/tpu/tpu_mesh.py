"""A mesh of TPU cores: TensorFlow's TPU runtime partitions and runs the same annotated step.

All cores compute one replica, with a sharded state:

    batch = parts of the batch, each on the host of its core
    strategy.run(steps)(handles of the state, batch):      # one program; XLA partitions it
        state = read the handles
        state, reports = CoreProgram.train(state, batches)
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
from lingo.runtimes.layout import Layout
from lingo.runtimes.mesh.engine import device_mesh, engine
from lingo.runtimes.mesh.mesh import Functions, call_tensorflow
from lingo.runtimes.program import Arrays, CompiledProgram, Computation, Feed, Program
from lingo.runtimes.runtime import matmul_flops_per_second
from lingo.runtimes.sharded import Sharded
from lingo.runtimes.tpu.core_program import CoreProgram, Cut, with_sharding
from lingo.runtimes.tpu.cores import Cores, connect

Parts = dict[str, list[Any]]
"""A batch in parts: name -> the part of each core, in the order of the tile assignment."""


class TpuMesh(Sharded):
    """Trains on a mesh of all cores of a TPU: the product of its axes, from `data` to `stage`.

    It has the fields and annotations of `Mesh`; `TPUStrategy` runs the step on all cores as one
    replica, which XLA partitions. The innermost axis is on neighbouring cores. One process feeds
    all hosts, so no other processes are launched. A TPU compiler accepts its program, but the code
    has not run on a TPU yet.
    """

    tpu: str = "local"  # where it is: a name, a grpc:// address, or "local": in this machine

    def make_devices(self, num_devices: int) -> None:
        raise ParamError(
            f"devices={num_devices}: {type(self).__name__} computes on the cores of a TPU, which"
            " cannot be virtual: runtime=Mesh computes on virtual devices"
        )

    def start(self, learner: Learner, state: TrainState) -> Program:
        cores = connect(self.p.tpu, self.topology())
        return TpuMeshProgram(learner, state, self.layout(learner), cores)

    def compile_program(
        self,
        learner: Learner,
        specs: Specs,
        *,
        evaluation: bool = False,
        topology: str | None = None,
    ) -> CompiledProgram:
        functions = CoreFunctions(learner, self.layout(learner))
        return functions.compile(specs, evaluation=evaluation, topology=topology)

    def matmul_flops_per_second(self, dtype: str) -> float:
        cores = connect(self.p.tpu, self.topology())
        return matmul_flops_per_second(dtype, cores.devices)


class TpuMeshProgram(Program):
    """Runs steps in a loop on the cores; the host feeds them and reads their reports."""

    def __init__(self, learner: Learner, state: TrainState, layout: Layout, cores: Cores) -> None:
        """Puts the first state on the cores, like `load`; `layout` has the split of each tensor."""
        self._core, self._cores = CoreProgram(learner, layout), cores
        super().__init__(learner, self._core.placement)
        self._variables = tf.nest.map_structure(
            lambda cut, value: ShardedVariable(cut, value, cores.devices), self._core.cuts, state
        )

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        batches: Parts = {}
        for name, (shape, dtype) in specs.items():
            cut = self._core.batch_cut((num_steps, *shape), rows_axis=1)
            batches[name] = [tf.TensorSpec(cut.part_shape, dtype) for _ in cut.devices]
        self._train.get_concrete_function(batches, specs["rows"][0][0])

    def graph(self, specs: Specs) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it."""
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        state = tf.nest.map_structure(
            lambda v: tf.TensorSpec(v.cut.inside, v.dtype), self._variables
        )
        return self._core.step.get_concrete_function(
            tf.TensorSpec([], tf.int32), state, batch
        ).graph

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
                state = self._core.select(self._read(handles), weights)
                return self._compute(computation, state, batch, *args)

            return self._run(body, parts, num_rows, 0)

        return tf.function(call, autograph=False)

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        parts: Parts = {}
        for name, value in batch.items():
            cut = self._core.batch_cut(value.shape, rows_axis=axis)
            parts[name] = put_parts(tf.constant, cut, value, self._cores.hosts)
        return Feed((parts, batch["rows"].shape[axis]))

    # ---- around the program of the cores

    def _run(
        self,
        body: Callable[[Any, dict[str, Any]], Any],
        parts: Parts,
        num_rows: int,
        rows_axis: int,
    ) -> Any:
        """Runs a function of (handles of the state, batch) on the cores and returns its result."""
        one_part = {name: own[0] for name, own in parts.items()}
        cuts = self._core.batch_cuts(one_part, num_rows, axis=rows_axis)

        def replica(handles: Any, batch: Mapping[str, tf.Tensor]) -> Any:
            return body(handles, self._core.real_batch(batch, num_rows, axis=rows_axis))

        handles = tf.nest.map_structure(lambda v: v.handle(), self._variables)
        batch = {name: join_parts(own, cuts[name]) for name, own in parts.items()}
        # Sizes are static; by default TensorFlow would add code that pads each input.
        options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
        return self._cores.strategy.run(replica, (handles, batch), options=options)

    # ---- in the program of the cores

    def _train_steps(self, handles: Any, batches: dict[str, Any]) -> dict[str, Any]:
        state, reports = self._core.train(self._read(handles), batches)
        tf.nest.map_structure(lambda v, h, new: v.write(h, new), self._variables, handles, state)
        return reports

    def _read(self, handles: Any) -> TrainState:
        """Returns the state as tensors, [*padded]."""
        return tf.nest.map_structure(lambda v, h: v.read(h), self._variables, handles)


# ---- without a TPU -------------------------------------------------------------------------------


class CoreFunctions(Functions):
    """The cores' program, compiled for devices of this process or for absent TPUs."""

    def __init__(self, learner: Learner, layout: Layout) -> None:
        """Uses as many of this process's devices as the mesh has."""
        self._core = CoreProgram(learner, layout)
        super().__init__(learner, layout, device_mesh(layout.mesh), donate=True)

    def compile_call(self, computation: Computation) -> Any:
        """Does as `Functions.compile_call`, but only for trained weights and without prompts."""

        def call(weights: Any, state: Any, which: WhichWeights, batch: Any, size: int) -> Any:
            def compute(weights: Any, state: Any, batch: Any) -> Any:
                read = self._core.select(TrainState(0, weights, {}, state), which)
                real, task = self._core.real_batch(batch, size, axis=0), self._learner.task
                return computation.function(task, read.weights, read.state, real, self.placement)

            return call_tensorflow(compute)(weights, state, batch)

        return engine().jit(call, out_shardings=self._everywhere, static_argnums=(2, 4))

    def _steps(self, state: TrainState, batches: Any, size: int) -> tuple[TrainState, Any]:
        def train(state: Any, batches: Any) -> Any:
            real = self._core.real_batch(batches, size, axis=1)
            after, reports = self._core.train(TrainState(*state), real)
            return tuple(after), reports

        after, reports = call_tensorflow(train)(tuple(state), batches)
        return TrainState(*after), reports


# ---- tensors in parts on the cores ---------------------------------------------------------------


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
        """Returns the value, [*cut.padded]."""
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype)

    def write(self, handle: tf.Tensor, value: tf.Tensor) -> None:
        """Assigns a value, [*cut.padded] of type `dtype`."""
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def load(self, value: Any) -> None:
        """Assigns a value from host memory, [*cut.shape] of type `dtype`."""
        for variable, part in zip(self._parts, self.cut.parts(value), strict=True):
            variable.assign(part)

    def numpy(self) -> np.ndarray:
        """Returns the value as a NumPy array, [*cut.shape]."""
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
    return with_sharding(tensor, cut.tiles)
