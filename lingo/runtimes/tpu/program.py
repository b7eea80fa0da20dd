"""A learner on the cores of a TPU: one replica that all cores compute, with a sharded state.

fed = parts of the batch, each on the host of its core
strategy.run(steps)(handles of the state, batch):      # one program; XLA partitions it
    state = read the handles
    state, reports = scan(annotated train step, state, batches)
    write the handles

Axes: K steps, B examples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import decode_batch, evaluate_batch, predict_batch, train_step
from lingo.mesh.split import Split, whole
from lingo.metrics.metric import State, add_states, read_states
from lingo.ops import random
from lingo.ops.scan import scan
from lingo.runtimes.layout import Layout, batch_axes
from lingo.runtimes.mesh.annotation import MeshPlacement
from lingo.runtimes.runtime import Arrays
from lingo.runtimes.tpu.cores import Cores
from lingo.runtimes.tpu.sharded_variable import (
    Cut,
    ShardedVariable,
    join_parts,
    put_parts,
    remove_padding,
)

Fed = dict[str, list[Any]]
"""A batch in parts: name -> the part of each core, in the order of the tile assignment."""


class TpuMeshProgram:
    """Runs steps in a loop on the cores; the host feeds them and reads their reports."""

    def __init__(self, learner: Learner, state: TrainState, layout: Layout, cores: Cores) -> None:
        """Puts the first state, as for `load`, on the cores; `layout` is which part each holds."""
        self._learner, self._layout, self._cores = learner, layout, cores
        self._place = MeshPlacement(layout)
        self._variables = layout.map(self._make_variables, state)
        self._train = tf.function(self._steps, autograph=False)
        self._step = tf.function(self._one, autograph=False)
        self._evaluate = tf.function(self._states, autograph=False)
        self._predict = tf.function(self._predictions, autograph=False)
        self._decode = tf.function(self._texts, autograph=False)

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        fed: Fed = {}
        for name, (shape, dtype) in specs.items():
            cut = self._batch_cut((num_steps, *shape), rows_axis=1)
            fed[name] = [tf.TensorSpec(cut.part_shape, dtype) for _ in cut.devices]
        self._train.get_concrete_function(fed, specs["rows"][0][0])

    def graph(self, specs: Specs) -> tf.Graph:
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        state = tf.nest.map_structure(
            lambda v: tf.TensorSpec(v.cut.inside, v.dtype), self._variables
        )
        return self._step.get_concrete_function(tf.TensorSpec([], tf.int32), state, batch).graph

    def train(self, batches: Arrays) -> dict[str, Any]:
        return self._train(self._feed(batches, rows_axis=1), batches["rows"].shape[1])

    def evaluate(
        self, batch: Arrays, *, weights: WhichWeights = "trained", sums: Mapping[str, State] = {}
    ) -> Mapping[str, State]:
        return add_states(sums, self._evaluate(self._feed(batch), len(batch["rows"]), weights))

    def read_sums(self, sums: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
        return read_states(sums)

    def predict(self, batch: Arrays, *, weights: WhichWeights = "trained") -> dict[str, np.ndarray]:
        results = self._predict(self._feed(batch), len(batch["rows"]), weights)
        return {name: value.numpy() for name, value in results.items()}

    def decode(
        self, batch: Arrays, decoding: Decoding, *, seed: int = 0, weights: WhichWeights = "trained"
    ) -> dict[str, np.ndarray]:
        key = random.Key(*map(tf.constant, random.root_key(seed)))
        texts = self._decode(self._feed(batch), len(batch["rows"]), decoding, key, weights)
        return {name: value.numpy() for name, value in texts.items()}

    def example_slice(self, size: int) -> slice:
        return slice(0, size)  # one process feeds all hosts

    def state(self, *, alone: bool = False) -> TrainState:
        return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

    def load(self, state: TrainState) -> None:
        tf.nest.map_structure(lambda v, value: v.load(value), self._variables, state)

    # ---- around the program of the cores

    def _make_variables(self, value: Any, split: Split) -> ShardedVariable:
        cut = Cut(np.shape(value), split, self._layout.mesh)
        return ShardedVariable(cut, value, self._cores.devices)

    def _batch_cut(self, shape: tuple[int, ...], *, rows_axis: int) -> Cut:
        axes = batch_axes(self._layout.rules, self._layout.mesh)
        return Cut(shape, whole(len(shape)).cut(rows_axis, axes), self._layout.mesh)

    def _feed(self, batch: Arrays, *, rows_axis: int = 0) -> Fed:
        cut = functools.partial(self._batch_cut, rows_axis=rows_axis)
        return {
            name: put_parts(tf.constant, cut(value.shape), value, self._cores.hosts)
            for name, value in batch.items()
        }

    def _run(
        self, body: Callable[[Any, dict[str, Any]], Any], fed: Fed, num_rows: int, rows_axis: int
    ) -> Any:
        """Runs a function of (handles of the state, batch) on the cores and returns its result."""
        cuts = {}
        for name, parts in fed.items():
            shape = parts[0].shape.as_list()
            shape[rows_axis] = num_rows
            cuts[name] = self._batch_cut(tuple(shape), rows_axis=rows_axis)

        def replica(handles: Any, batch: Mapping[str, tf.Tensor]) -> Any:
            return body(handles, {k: remove_padding(value, cuts[k]) for k, value in batch.items()})

        handles = tf.nest.map_structure(lambda v: v.handle(), self._variables)
        batch = {name: join_parts(parts, cuts[name]) for name, parts in fed.items()}
        # Sizes are static; by default TensorFlow would add code that pads each input.
        options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
        return self._cores.strategy.run(replica, (handles, batch), options=options)

    def _steps(self, fed: Fed, num_rows: int) -> dict[str, Any]:
        return self._run(self._train_steps, fed, num_rows, 1)

    def _states(self, fed: Fed, num_rows: int, weights: WhichWeights) -> dict[str, Any]:
        def body(handles: Any, batch: dict[str, Any]) -> dict[str, Any]:
            state, task = self._read(handles, weights), self._learner.task
            return evaluate_batch(task, state.weights, state.state, batch, self._place)

        return self._run(body, fed, num_rows, 0)

    def _predictions(self, fed: Fed, num_rows: int, weights: WhichWeights) -> dict[str, tf.Tensor]:
        def body(handles: Any, batch: dict[str, Any]) -> dict[str, Any]:
            state, task = self._read(handles, weights), self._learner.task
            return predict_batch(task, state.weights, state.state, batch, self._place)

        return self._run(body, fed, num_rows, 0)

    def _texts(
        self, fed: Fed, num_rows: int, decoding: Decoding, key: random.Key, weights: WhichWeights
    ) -> dict[str, tf.Tensor]:
        def body(handles: Any, batch: dict[str, Any]) -> dict[str, Any]:
            state = self._read(handles, weights)
            task, place = self._learner.task, self._place
            return decode_batch(task, state.weights, state.state, batch, decoding, key, place)

        return self._run(body, fed, num_rows, 0)

    # ---- in the program of the cores

    def _train_steps(self, handles: Any, batches: dict[str, Any]) -> dict[str, Any]:
        state = tf.nest.map_structure(lambda v, h: v.read(h), self._variables, handles)
        state, reports = scan(self._step, state, batches, batches["rows"].shape[0])
        tf.nest.map_structure(lambda v, h, new: v.write(h, new), self._variables, handles, state)
        return reports

    def _one(
        self, i: tf.Tensor, state: TrainState, batch: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        return train_step(self._learner, state, batch, self._place)

    def _read(self, handles: Any, weights: WhichWeights) -> TrainState:
        """Returns the state as tensors, as trained or averaged, as layers read them."""
        state = tf.nest.map_structure(lambda v, h: v.read(h), self._variables, handles)
        return self._place.state_for_evaluation(state, weights)
