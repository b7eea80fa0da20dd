"""A learner on a mesh of devices: it owns the arrays of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import step_graph
from lingo.metrics.metric import State
from lingo.ops import random
from lingo.runtimes.compiled_program import CompiledProgram
from lingo.runtimes.layout import Layout
from lingo.runtimes.mesh.arrays import Place
from lingo.runtimes.mesh.cluster import Members, One
from lingo.runtimes.mesh.engine import device_mesh, engine, explain_engine_errors
from lingo.runtimes.mesh.functions import Functions
from lingo.runtimes.runtime import Arrays, ProgramError, explain_program_errors


class MeshProgram:
    """Runs steps in a scan in one program; the state is split over all devices.

    A single process donates the memory of a state to the next state. Several processes do not: if
    one of them is lost during a step, the others can still save the state before that step.
    """

    def __init__(
        self, learner: Learner, state: TrainState, layout: Layout, members: Members | One
    ) -> None:
        """Puts the first state, the same in all processes, on the devices of `members`."""
        self._learner, self._members = learner, members
        donate = members.count == 1
        self._functions = Functions(learner, layout, device_mesh(layout.mesh), donate=donate)
        self._decoders: dict[Decoding, Callable[..., Any]] = {}
        self.load(state)

    def compile(self, specs: Specs, *, num_steps: int) -> CompiledProgram:
        return self._functions.compile(specs, num_steps=num_steps)

    def graph(self, specs: Specs) -> tf.Graph:
        return step_graph(self._learner, specs)

    def train(self, batches: Arrays) -> dict[str, Any]:
        with explain_engine_errors():
            arguments = (self._state, *self._put(batches, axis=1))
            self._state, reports = self._members.wait(self._functions.train, *arguments)
            return _read_arrays(reports)

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        # One batch is computed while the host prepares the next: more would fill the devices.
        with explain_program_errors("the batch before"), explain_engine_errors():
            engine().block_until_ready(sums)
        with explain_engine_errors():
            state = self._state.select(weights)
            arguments = (state.weights, state.state, *self._put(batch), weights)
            states = self._members.start(self._functions.evaluate, *arguments)
            return self._functions.add_states(sums, states) if sums else states

    def read_sums(self, sums: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
        with explain_engine_errors():
            return _read_arrays(sums)

    def predict(self, batch: Arrays, *, weights: WhichWeights = "trained") -> dict[str, np.ndarray]:
        with explain_engine_errors():
            state = self._state.select(weights)
            arguments = (state.weights, state.state, *self._put(batch), weights)
            return _read_arrays(self._members.wait(self._functions.predict, *arguments))

    def decode(
        self, batch: Arrays, decoding: Decoding, *, seed: int = 0, weights: WhichWeights = "trained"
    ) -> dict[str, np.ndarray]:
        if decoding not in self._decoders:
            self._decoders[decoding] = self._functions.decode(decoding)
        with explain_engine_errors():
            arrays, size = self._put(batch)
            state, key = self._state.select(weights), random.root_key(seed)
            arguments = (state.weights, state.state, arrays, key, size, weights)
            return _read_arrays(self._members.wait(self._decoders[decoding], *arguments))

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

    def _put(self, batch: Arrays, *, axis: int = 0) -> tuple[dict[str, Any], int]:
        """Returns the arrays of a batch, and its number of examples over all processes."""
        rows = self._functions.rows
        size = rows.size(self._members.gather(batch["rows"].shape[axis]))
        return rows.put(batch, size=size, axis=axis), size


def _read_whole(place: Place, array: Any) -> np.ndarray:
    if array.is_deleted():
        raise ProgramError("the state was given away to a step that failed")
    value = place.whole(array)
    if value is None:
        raise ProgramError("parts of the state are in other processes only")
    return value


def _read_arrays(arrays: Any) -> Any:
    return engine().tree.map(np.asarray, arrays)
