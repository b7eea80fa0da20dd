"""A program on one device: the steps are one `tf.function`, the state is in variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.learner.state import Learner, TrainState, WhichWeights, load_arrays
from lingo.learner.step import Placement, decode_batch, evaluate_batch, train_step
from lingo.ops import random
from lingo.ops.scan import scan


class LocalProgram:
    """Runs steps in a loop in one graph, which reads variables at its start, assigns at its end."""

    def __init__(self, learner: Learner, state: TrainState, place: Placement) -> None:
        self._learner, self._xla, self._place = learner, place.compiled, place
        # Grappler's memory optimizer sums gradients in order of arrival, so the last bits differ
        # from run to run. This switch is the only way to disable it; steps are no slower.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        self._variables = state.map(self._variable)
        self._train = tf.function(
            self._steps, autograph=False, jit_compile=self._xla, reduce_retracing=True
        )
        self._step = tf.function(self._one, autograph=False)
        self._evaluate = tf.function(self._states, autograph=False, jit_compile=self._xla)
        self._decode = tf.function(
            self._texts, autograph=False, jit_compile=self._xla, reduce_retracing=True
        )

    def compile(self, specs: Specs, *, num_steps: int) -> None:
        lead = (
            num_steps if self._xla else None
        )  # XLA needs all sizes; without it one trace fits any
        traced = {k: tf.TensorSpec([lead, *shape], dtype) for k, (shape, dtype) in specs.items()}
        self._train.get_concrete_function(traced)

    def graph(self, specs: Specs) -> tf.Graph:
        batch = {k: tf.TensorSpec(shape, dtype) for k, (shape, dtype) in specs.items()}
        state = tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), self._variables)
        return self._step.get_concrete_function(tf.TensorSpec([], tf.int32), state, batch).graph

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._train({k: tf.constant(v) for k, v in batches.items()})

    def evaluate(
        self, batch: Mapping[str, np.ndarray], *, weights: WhichWeights = "trained"
    ) -> dict[str, Any]:
        return self._evaluate({k: tf.constant(v) for k, v in batch.items()}, weights)

    def decode(
        self,
        batch: Mapping[str, np.ndarray],
        decoding: Decoding,
        *,
        seed: int = 0,
        weights: WhichWeights = "trained",
    ) -> dict[str, np.ndarray]:
        prompts = {k: tf.constant(v) for k, v in batch.items()}
        key = random.Key(*map(tf.constant, random.root_key(seed)))
        found = self._decode(prompts, decoding, key, weights)
        return {name: value.numpy() for name, value in found.items()}

    def example_slice(self, size: int) -> slice:
        return slice(0, size)

    def state(self, *, alone: bool = False) -> TrainState:
        del alone  # there is only one process
        return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

    def load(self, state: TrainState) -> None:
        self._assign(load_arrays(state))  # if reading fails, nothing has changed

    def _steps(self, batches: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        num = tf.shape(batches["rows"])[0]
        state, reports = scan(self._step, self._variables, dict(batches), num)
        self._assign(state)
        return reports

    def _one(
        self, i: tf.Tensor, state: TrainState, batch: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        del i  # the state counts steps
        return train_step(self._learner, state, batch, self._place)

    def _states(self, batch: Mapping[str, tf.Tensor], weights: WhichWeights) -> dict[str, Any]:
        state, chosen = self._read(weights)
        return evaluate_batch(self._learner.task, chosen, state.state, batch, self._place)

    def _texts(
        self,
        batch: Mapping[str, tf.Tensor],
        decoding: Decoding,
        key: random.Key,
        weights: WhichWeights,
    ) -> dict[str, tf.Tensor]:
        state, chosen = self._read(weights)
        return decode_batch(
            self._learner.task, chosen, state.state, batch, decoding, key, self._place
        )

    def _read(self, weights: WhichWeights) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state as tensors, and its trained or averaged weights."""
        state = tf.nest.map_structure(tf.convert_to_tensor, self._variables)
        return state, state.select_weights(weights)

    def _variable(self, where: str, value: Any) -> tf.Variable:
        with self._place.device_scope(where):
            return tf.Variable(tf.convert_to_tensor(np.asarray(value)))

    def _assign(self, state: TrainState) -> None:
        tf.nest.map_structure(lambda v, value: v.assign(value), self._variables, state)
