"""The functions of a learner as programs for a mesh; they hold no arrays.

    jit(state, batches -> state, reports)      # the arrays of the state are padded and sharded
        tensors = state without padding
        tensors, reports = lax.scan(call_tf(train_step), tensors, batches)
        state = tensors with padding

`call_tf` lowers a TensorFlow function, sharding annotations included, into the program that JAX
compiles: one for all devices, which XLA's partitioner turns into the program of each device.

Axes: K steps, B examples (in arrays of a batch: padded to equal parts).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lingo.data.array_spec import Specs
from lingo.learner.padding import padding_changes_results
from lingo.learner.state import Learner, TrainState, WhichWeights, map_shapes
from lingo.learner.step import train_step
from lingo.mesh.split import Split, whole
from lingo.metrics.metric import add_states
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.layout import Layout, batch_axes
from lingo.runtimes.mesh.annotation import MeshPlacement
from lingo.runtimes.mesh.arrays import Place, sharding
from lingo.runtimes.mesh.engine import engine, explain_engine_errors
from lingo.runtimes.mesh.rows import Rows, remove_padding
from lingo.runtimes.program import EVALUATE, Computation


class Functions:
    """What a learner computes on a mesh, as `jax.jit` functions that compile when first called.

    Attributes:
        places: a TrainState with the `Place` of each tensor.
        rows: where the examples of a batch are.
        train: (state, [K, B, ...] batches, number of examples without padding) -> state, [K, ...]
            reports; donates the memory of the first state if `donate` is set.
        add_states: (sums of metric states, metric states) -> sums; donates the first.
        placement: of the tensors of a step.
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
        """Returns a `jax.jit` function of a state and a batch that returns their results.

        It takes weights, moving statistics, which weights these are, a [B, ...] batch, the number
        of examples without padding, and of prompts also decoding and random key.
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
            results = _call_tensorflow(compute, *arrays)
            return results if computation.is_sum else remove_padding(results, size)

        static = (2, 4, 5) if computation.takes_prompts else (2, 4)
        return engine().jit(call, out_shardings=self._everywhere, static_argnums=static)

    def compile(
        self, specs: Specs, *, num_steps: int = 1, evaluation: bool = False
    ) -> CompiledProgram:
        """Compiles `train`, or evaluation, from shapes; later calls of `train` do not compile.

        So a program for thousands of devices compiles on one CPU. `specs` are name -> (shape,
        dtype) of a batch; `num_steps` is that of one call of `train`.
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
                arguments = (state.weights, state.state, "trained", batch, size)
                lowered = self.compile_call(EVALUATE).lower(*arguments)
            else:
                lowered = self.train.lower(state, batches, size)
            traced = time.perf_counter()
            compiled = lowered.compile()
            return CompiledProgram(
                mesh=self._topology,
                text=compiled.as_text(),
                num_steps=num_steps,
                memory=_memory(compiled.memory_analysis()),
                trace_seconds=traced - began,
                compile_seconds=time.perf_counter() - traced,
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
        jax = engine()

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
            several = self._learner.accumulation_steps > 1
            batch = remove_padding(batch, size) if several else self._real(batch, size)
            after, report = _call_tensorflow(self._step, tuple(state), batch)
            return TrainState(*after), report

        tensors = jax.tree.map(Place.without_padding, self.places, state)
        tensors, reports = jax.lax.scan(step, tensors, batches)
        return jax.tree.map(Place.with_padding, self.places, tensors), reports

    def _step(self, state: Any, batch: Any) -> Any:
        before = self.placement.state(TrainState(*state))
        after, report = train_step(self._learner, before, batch, self.placement)
        return tuple(self.placement.state(after)), report

    def _real(self, batch: Any, size: int) -> Any:
        """Returns a batch without its padding examples if these would change the results."""
        # Padding costs less: where a loss flattens unequal parts, the partitioner gathers logits.
        counts = padding_changes_results(self._learner.task, len(batch["rows"]))
        return remove_padding(batch, size) if counts else batch

    def _unpad(self, weights: Any, state: Any, which: WhichWeights) -> tuple[Any, Any]:
        """Returns weights, trained or averaged, and moving statistics without padding."""
        places = self.places.select(which)
        unpad = Place.without_padding
        return (
            {k: unpad(place, weights[k]) for k, place in places.weights.items()},
            {k: unpad(place, state[k]) for k, place in places.state.items()},
        )

    def _read(self, weights: Any, state: Any, which: WhichWeights) -> tuple[Any, Any]:
        """Returns the tensors of `_unpad` as layers read them: they may be in parts, or rows."""
        gather = self.placement.gather_weights
        if which == "ema":
            return gather(weights), gather(state)
        return (gather(weights) if self.placement.keeps_parts else weights), state


def _call_tensorflow(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a TensorFlow function inside a JAX program."""
    from jax.experimental import jax2tf

    return jax2tf.call_tf(function, has_side_effects=False)(*args)


def _places(learner: Learner, layout: Layout, mesh: Any) -> TrainState:
    shapes = map_shapes(learner, lambda shape: shape)

    def place(shape: tuple[int, ...], split: Split) -> Place:
        return Place(shape, split, layout.mesh, mesh)

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
