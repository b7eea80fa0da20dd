"""A learner on a mesh of devices: it owns the arrays of the state."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.data.array_spec import Specs
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.metrics.metric import State
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.layout import Layout
from lingo.runtimes.mesh.arrays import Place
from lingo.runtimes.mesh.cluster import Members, One
from lingo.runtimes.mesh.engine import device_mesh, engine, explain_engine_errors
from lingo.runtimes.mesh.functions import Functions
from lingo.runtimes.program import (
    Arrays,
    Computation,
    Feed,
    Program,
    ProgramError,
    explain_program_errors,
)


class MeshProgram(Program):
    """Runs steps in a scan in one program; the state is split over all devices.

    A single process donates the memory of a state to the next state. Several processes do not: if
    one of them is lost during a step, the others can still save the state before that step.
    """

    def __init__(
        self, learner: Learner, state: TrainState, layout: Layout, members: Members | One
    ) -> None:
        """Puts the first state, the same in all processes, on the devices of `members`."""
        self._members, donate = members, members.count == 1
        self._functions = Functions(learner, layout, device_mesh(layout.mesh), donate=donate)
        super().__init__(learner, self._functions.placement)
        self.load(state)

    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram:
        return self._functions.compile(specs, num_steps=num_steps)

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        # One batch is computed while the host prepares the next: more would fill the devices.
        with explain_program_errors("the batch before"), explain_engine_errors():
            engine().block_until_ready(sums)
        states = super().evaluate(batch, weights=weights)
        with explain_engine_errors():
            return self._functions.add_states(sums, states) if sums else states

    def example_slice(self, size: int) -> slice:
        return self._functions.rows.example_slice(self._members.index, size)

    def state(self, *, alone: bool = False) -> TrainState:
        with explain_engine_errors():
            returns_all = alone or self._members.count == 1
            read = _read_whole if returns_all else Place.parts
            state = engine().tree.map(read, self._functions.places, self._state)
            step = _read_whole(self._functions.places.step, self._state.step)
            return state._replace(step=np.int32(step))

    def load(self, state: TrainState) -> None:
        with explain_engine_errors():
            self._state = engine().tree.map(Place.put, self._functions.places, state)

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
        sizes = self._members.gather(batch["rows"].shape[axis])
        size = rows.size(sizes)
        return Feed((rows.put(batch, size=size, axis=axis), size), sizes)

    def get(self, results: Mapping[str, Any], feed: Feed) -> dict[str, np.ndarray]:
        return _read_arrays(results)

    def call_context(self) -> contextlib.AbstractContextManager[None]:
        return explain_engine_errors()


def _read_whole(place: Place, array: Any) -> np.ndarray:
    if array.is_deleted():
        raise ProgramError("the state was given away to a step that failed")
    value = place.whole(array)
    if value is None:
        raise ProgramError("parts of the state are in other processes only")
    return value


def _read_arrays(arrays: Any) -> Any:
    return engine().tree.map(np.asarray, arrays)
