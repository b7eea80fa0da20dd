"""One program, which XLA's partitioner splits over a mesh of devices (GSPMD, Xu et al. 2021).

    jit(state, batches -> state, reports)      # the arrays of the state are padded and sharded
        tensors = state without padding
        tensors, reports = scan(call_tf(train_step), tensors, batches)
        state = tensors with padding

`call_tf` lowers a TensorFlow function, sharding annotations included, into the program that JAX
compiles: one for all devices, which XLA's partitioner turns into the program of each device.
`Functions` are these programs and hold no arrays; `MeshProgram` owns the arrays of the state.

Axes: K steps, B examples. Arrays of a batch are padded, so that B has equal parts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.data.array_spec import Specs
from lingo.learner.padding import padding_changes_results
from lingo.learner.state import Learner, TrainState, WhichWeights, map_shapes
from lingo.mesh.split import Split, whole
from lingo.metrics.metric import State, add_states
from lingo.processes import processes
from lingo.runtimes import program
from lingo.runtimes.devices import advise_settings, list_gpus
from lingo.runtimes.layout import Layout, batch_axes, bytes_per_device
from lingo.runtimes.mesh import cluster, tpu_compiler
from lingo.runtimes.mesh import engine as jax_engine
from lingo.runtimes.mesh.annotation import MeshPlacement, sharded_step
from lingo.runtimes.mesh.arrays import ArrayLayout, Rows, remove_padding, sharding
from lingo.runtimes.mesh.engine import engine, explain_engine_errors
from lingo.runtimes.program import Arrays, CompiledProgram, Computation, Feed
from lingo.runtimes.sharded import Sharded


class Mesh(Sharded):
    """Trains on a mesh of devices: the product of its axes, from `data` to `stage`.

    All devices run the same step, each on its parts of batch and weights. Several processes, one
    per host, form one mesh if `TF_CONFIG` names them. It computes on CPUs and GPUs; `TpuMesh`
    computes on TPUs. Needs JAX: `pip install 'lingo-tf[mesh]'`.

    With `shard_update` each of N devices along the batch has 1/N of every slot, rounded up. An axis
    of the weight that divides into N is split. Else the weight's elements form a row
    with zeros at its end, and each device updates one of N equal chunks; `uneven=False` leaves such
    a slot whole, as does an optimizer whose class does not set `takes_rows`. With `shard_weights` a
    weight is split along the axis that divides, or along the largest, which is padded; a weight
    with fewer than N elements stays whole.
    """

    def padded_batch_size(self, batch_size: int, learner: Learner) -> int:
        mesh = self.topology()
        parts = mesh.size(batch_axes(self.axis_rules(), mesh))
        padded = -(-batch_size // parts) * parts
        several = learner.accumulation_steps > 1
        padding_counts = several or padding_changes_results(learner.task, padded)
        return batch_size if padding_counts else padded

    def device_names(self) -> list[str]:
        return [str(device) for device in engine().local_devices()]

    def advice(self, dtype: str) -> list[str]:
        if engine().local_devices()[0].platform == "cpu":
            return []
        return advise_settings(list_gpus(), dtype=dtype, xla=None)

    def num_host_devices(self) -> int:
        several = processes.cluster(os.environ)
        num_local = -(-self.topology().num_devices // (len(several.workers) if several else 1))
        return num_local if engine().config.jax_platforms == "cpu" else 1

    def host_bytes(self, learner: Learner) -> int:
        sizes = bytes_per_device(learner, self.layout(learner))
        size = sum(sizes[kind].per_device for kind in ("weights", "slots", "statistics"))
        return size * self.num_host_devices()

    def make_devices(self, num_devices: int) -> None:
        jax_engine.make_devices(num_devices)

    def join(self) -> processes.Processes:
        return cluster.join()

    def start(self, learner: Learner, state: TrainState) -> program.Program:
        return MeshProgram(learner, state, self.layout(learner), cluster.members())

    def compile_program(
        self,
        learner: Learner,
        specs: Specs,
        *,
        evaluation: bool = False,
        topology: str | None = None,
    ) -> CompiledProgram:
        layout = self.layout(learner)
        functions = Functions(learner, layout, jax_engine.device_mesh(layout.mesh), donate=True)
        return functions.compile(specs, evaluation=evaluation, topology=topology)

    def matmul_flops_per_second(self, dtype: str) -> float:
        return jax_engine.matmul_flops_per_second(dtype, self.topology().num_devices)


class MeshProgram(program.Program):
    """Runs steps in a scan in one program; the state is split over all devices.

    A single process donates the memory of a state to the next state. Several processes do not: if a
    process is lost during a step, the remaining ones can still save the state before that step.
    """

    def __init__(
        self,
        learner: Learner,
        state: TrainState,
        layout: Layout,
        members: cluster.Members | cluster.One,
    ) -> None:
        """Puts the first state, the same in all processes, on the devices of `members`."""
        self._members, donate = members, members.count == 1
        self._functions = Functions(
            learner, layout, jax_engine.device_mesh(layout.mesh), donate=donate
        )
        super().__init__(learner, self._functions.placement)
        self.load(state)

    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram:
        return self._functions.compile(specs, num_steps=num_steps)

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        # Only one batch is computed while the host prepares the next: more would fill the devices.
        with program.explain_program_errors("the previous batch"), explain_engine_errors():
            engine().block_until_ready(sums)
        states = super().evaluate(batch, weights=weights)
        with explain_engine_errors():
            return self._functions.add_states(sums, states) if sums else states

    def example_slice(self, size: int) -> slice:
        return self._functions.rows.example_slice(self._members.index, size)

    def state(self, *, alone: bool = False) -> TrainState:
        with explain_engine_errors():
            returns_all = alone or self._members.count == 1
            read = _read_whole if returns_all else ArrayLayout.parts
            state = engine().tree.map(read, self._functions.places, self._state)
            step = _read_whole(self._functions.places.step, self._state.step)
            return state._replace(step=np.int32(step))

    def load(self, state: TrainState) -> None:
        with explain_engine_errors():
            self._state = engine().tree.map(ArrayLayout.put, self._functions.places, state)

    def compile_steps(self) -> Any:
        def steps(batches: dict[str, Any], size: int) -> dict[str, Any]:
            train = self._functions.train
            self._state, reports = self._members.wait(train, self._state, batches, size)
            return _read_arrays(reports)

        return steps

    def compile_call(self, computation: Computation) -> Any:
        function = self._functions.compile_call(computation)

        def call(weights: WhichWeights, *args: Any) -> Any:
            state = self._state.select(weights)
            return self._members.start(function, state.weights, state.state, weights, *args)

        return call

    def put(self, batch: Arrays, *, axis: int = 0, prompts: bool = False) -> Feed:
        rows = self._functions.rows
        size = rows.size(self._members.gather(batch["rows"].shape[axis]))
        return Feed((rows.put(batch, size=size, axis=axis), size))

    def get(self, results: Mapping[str, Any], feed: Feed) -> dict[str, np.ndarray]:
        return _read_arrays(results)

    def peak_memory_bytes(self) -> int:
        return jax_engine.peak_memory_bytes()

    def call_context(self) -> contextlib.AbstractContextManager[None]:
        return explain_engine_errors()


class Functions:
    """A learner's computations on a mesh, as `jax.jit` functions that compile when first called.

    Attributes:
        places: a TrainState with the `Place` of each tensor.
        rows: how the examples of a batch are split.
        train: (state, [K, B, ...] batches, number of examples without padding) -> state, [K, ...]
            reports; donates the memory of the first state if `donate` is set.
        add_states: (sums of metric states, metric states) -> sums; donates the first.
        placement: annotates the tensors of a step with their splits.
    """

    def __init__(self, learner: Learner, layout: Layout, mesh: Any, *, donate: bool) -> None:
        jax = engine()
        self._learner, self.placement = learner, MeshPlacement(layout)
        self._topology = layout.mesh
        self.places = _places(learner, layout, mesh)
        self.rows = Rows(mesh, batch_axes(layout.rules, layout.mesh))
        self._everywhere = sharding(mesh, whole(0))
        state = jax.tree.map(lambda place: place.sharding, self.places)
        self.train = jax.jit(
            self._steps,
            in_shardings=(state, self.rows.sharding(axis=1)),
            out_shardings=(state, self._everywhere),
            donate_argnums=(0,) if donate else (),
            static_argnums=2,
        )
        self.add_states = jax.jit(add_states, out_shardings=self._everywhere, donate_argnums=0)

    def compile_call(self, computation: Computation) -> Any:
        """Returns a `jax.jit` function that applies a computation to a state and a batch.

        Its arguments are the weights, the moving statistics, "trained" or "ema" (the kind of
        these weights), a [B, ...] batch, its number of examples without padding, and for prompts
        also the decoding and the random key.
        """
        placement, task = self.placement, self._learner.task
        unpad = remove_padding if computation.takes_prompts else self._real

        def call(
            weights: Any, state: Any, which: WhichWeights, batch: Any, size: int, *args: Any
        ) -> Any:
            def compute(w: Any, s: Any, b: Any, *key: Any) -> Any:
                tensors = self._read(w, s, which)
                return computation.function(task, *tensors, b, *args[:-1], *key, placement)

            arrays = (*self._unpad(weights, state, which), unpad(batch, size), *args[-1:])
            results = call_tensorflow(compute)(*arrays)
            return results if computation.is_sum else remove_padding(results, size)

        static = (2, 4, 5) if computation.takes_prompts else (2, 4)
        return engine().jit(call, out_shardings=self._everywhere, static_argnums=static)

    def compile(
        self,
        specs: Specs,
        *,
        num_steps: int = 1,
        evaluation: bool = False,
        topology: str | None = None,
    ) -> CompiledProgram:
        """Compiles `train`, or evaluation, from shapes.

        No arrays are needed, so a program for thousands of devices compiles on one CPU. Later calls
        of `train` reuse a program that was compiled here for this process's devices. `specs` are
        name -> (shape, dtype) of a batch; `num_steps` is K. With a `topology` of TPUs, such as
        "v5e:4x4", the program is for these TPUs.
        """
        with explain_engine_errors():
            state, batches, size = self.arguments(specs, num_steps=num_steps)
            began = time.perf_counter()
            if evaluation:
                rows = self.rows.sharding(axis=0)
                batch = {
                    name: engine().ShapeDtypeStruct(array.shape[1:], array.dtype, sharding=rows)
                    for name, array in batches.items()
                }
                function = self.compile_call(program.EVALUATE)
                arguments = (state.weights, state.state, "trained", batch, size)
            else:
                function, arguments = self.train, (state, batches, size)
            if topology is None:
                lowered = function.lower(*arguments)
            else:
                lowered = tpu_compiler.lower(function, arguments, topology, donate=not evaluation)
            traced = time.perf_counter()
            compiled = lowered.compile()
            return CompiledProgram(
                mesh=self._topology,
                text=compiled.as_text(),
                num_steps=num_steps,
                memory=_memory(compiled.memory_analysis()),
                trace_seconds=traced - began,
                compile_seconds=time.perf_counter() - traced,
                topology=topology,
            )

    def arguments(self, specs: Specs, *, num_steps: int) -> tuple[TrainState, dict[str, Any], int]:
        """Returns abstract arguments of `train`: `jax.ShapeDtypeStruct`s in place of arrays.

        They are the state, the [K, B, ...] batches, and the number of examples without padding.
        """
        jax = engine()
        state = jax.tree.map(
            lambda place: jax.ShapeDtypeStruct(place.padded, "float32", sharding=place.sharding),
            self.places._replace(step=()),
        )
        step = jax.ShapeDtypeStruct((), "int32", sharding=self._everywhere)
        batches = {
            name: jax.ShapeDtypeStruct(
                (num_steps, self.rows.padded_size(shape[0]), *shape[1:]),
                dtype,
                sharding=self.rows.sharding(axis=1),
            )
            for name, (shape, dtype) in specs.items()
        }
        return state._replace(step=step), batches, specs["rows"][0][0]

    def _steps(self, state: TrainState, batches: Any, size: int) -> tuple[TrainState, Any]:
        jax, compute = engine(), call_tensorflow(self._step)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
            several = self._learner.accumulation_steps > 1
            batch = remove_padding(batch, size) if several else self._real(batch, size)
            after, report = compute(tuple(state), batch)
            return TrainState(*after), report

        tensors = jax.tree.map(ArrayLayout.without_padding, self.places, state)
        tensors, reports = jax_engine.scan(step, tensors, batches)
        return jax.tree.map(ArrayLayout.with_padding, self.places, tensors), reports

    def _step(self, state: Any, batch: Any) -> Any:
        after, report = sharded_step(self._learner, TrainState(*state), batch, self.placement)
        return tuple(after), report

    def _real(self, batch: Any, size: int) -> Any:
        """Returns a batch without its padding examples if these would change the results."""
        # Otherwise it stays: if a loss flattens unequal parts, the partitioner gathers the logits.
        padding_counts = padding_changes_results(self._learner.task, len(batch["rows"]))
        return remove_padding(batch, size) if padding_counts else batch

    def _unpad(self, weights: Any, state: Any, which: WhichWeights) -> tuple[Any, Any]:
        """Returns weights (trained or averaged) and moving statistics, all without padding."""
        places = self.places.select(which)
        unpad = ArrayLayout.without_padding
        return (
            {k: unpad(place, weights[k]) for k, place in places.weights.items()},
            {k: unpad(place, state[k]) for k, place in places.state.items()},
        )

    def _read(self, weights: Any, state: Any, which: WhichWeights) -> tuple[Any, Any]:
        """Returns `_unpad`'s tensors, perhaps in parts or rows, in the form that layers read."""
        gather = self.placement.gather_weights
        if which == "ema":
            return gather(weights), gather(state)
        return (gather(weights) if self.placement.keeps_parts else weights), state


def _read_whole(place: ArrayLayout, array: Any) -> np.ndarray:
    if array.is_deleted():
        raise program.ProgramError("the state is lost: a step that failed has reused its memory")
    value = place.whole(array)
    if value is None:
        raise program.ProgramError("parts of the state are only in other processes")
    return value


def _read_arrays(arrays: Any) -> Any:
    return engine().tree.map(np.asarray, arrays)


def call_tensorflow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a TensorFlow function in a form that JAX can call; equal shapes are traced once."""
    from jax.experimental import jax2tf

    return jax2tf.call_tf(function, has_side_effects=False)


def _places(learner: Learner, layout: Layout, mesh: Any) -> TrainState:
    shapes = map_shapes(learner, lambda shape: shape)

    def place(shape: tuple[int, ...], split: Split) -> ArrayLayout:
        return ArrayLayout(shape, split, layout.mesh, mesh)

    return layout.map(place, shapes)


def _memory(stats: Any) -> dict[str, int]:
    """Returns the bytes on one device that the compiler reports; {} if it has no report."""
    if stats is None:
        return {}
    return {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
    }
