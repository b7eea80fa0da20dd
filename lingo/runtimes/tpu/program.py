"""A learner on the cores of a TPU: one replica that all cores compute, with a sharded state.

batch = parts of the batch, each on the host of its core
strategy.run(steps)(handles of the state, batch):      # one program; XLA partitions it
    state = read the handles
    state, reports = scan(annotated train step, state, batches)
    write the handles

Axes: K steps, B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.mesh.split import Split, whole
from lingo.ops.scan import scan
from lingo.runtimes.layout import Layout, batch_axes
from lingo.runtimes.mesh.annotation import MeshPlacement
from lingo.runtimes.program import Arrays, Computation, Feed, Program
from lingo.runtimes.tpu.cores import Cores
from lingo.runtimes.tpu.sharded_variable import (
    Cut,
    ShardedVariable,
    join_parts,
    put_parts,
    remove_padding,
)

Parts = dict[str, list[Any]]
"""A batch in parts: name -> the part of each core, in the order of the tile assignment."""


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
        num_rows = batch["rows"].shape[axis]
        return Feed((parts, num_rows), [num_rows])

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
