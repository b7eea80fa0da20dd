"""One device: the step is one `tf.function`, the state lives in variables."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.lazy import tf
from lingo.ops.scan import scan
from lingo.train.runtimes.runtime import Runtime
from lingo.train.state import EMA, Learner, TrainState
from lingo.train.step import train_step
from lingo.train.task import evaluated


class Local(Runtime):
    """Trains on one device."""

    xla: bool = False  # compile the step with XLA; on processors it seldom pays

    def start(self, learner: Learner, state: TrainState) -> LocalProgram:
        return LocalProgram(learner, state, xla=self.p.xla)


class LocalProgram:
    """Steps in a loop in one graph; variables are read at its start, assigned once at its end."""

    def __init__(self, learner: Learner, state: TrainState, *, xla: bool) -> None:
        self._learner, self._xla = learner, xla
        # Grappler's memory optimizer turns sums of gradients into sums in order of arrival: other
        # last bits in every run. TensorFlow offers only this switch for it; steps are no slower.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        self._variables = tf.nest.map_structure(tf.Variable, state)
        self._train = tf.function(
            self._steps, autograph=False, jit_compile=xla, reduce_retracing=True
        )
        self._evaluate = tf.function(self._states, autograph=False, jit_compile=xla)

    def compile(self, specs: Mapping[str, tuple[tuple[int, ...], str]], *, num_steps: int) -> None:
        lead = num_steps if self._xla else None  # XLA knows all sizes; without, one trace for any
        traced = {k: tf.TensorSpec([lead, *shape], dtype) for k, (shape, dtype) in specs.items()}
        self._train.get_concrete_function(traced)

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return self._train({k: tf.constant(v) for k, v in batches.items()})

    def evaluate(
        self, batch: Mapping[str, np.ndarray], *, weights: str = "trained"
    ) -> dict[str, Any]:
        return self._evaluate({k: tf.constant(v) for k, v in batch.items()}, weights)

    def state(self) -> TrainState:
        return tf.nest.map_structure(lambda v: v.numpy(), self._variables)

    def _steps(self, batches: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        @functools.partial(tf.function, autograph=False)
        def one(i: tf.Tensor, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
            del i  # the state counts steps
            return train_step(self._learner, state, batch)

        state, reports = scan(one, self._variables, dict(batches), tf.shape(batches["rows"])[0])
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), self._variables, state
        )
        return reports

    def _states(self, batch: Mapping[str, tf.Tensor], weights: str) -> dict[str, Any]:
        state = tf.nest.map_structure(tf.convert_to_tensor, self._variables)
        chosen = {k: s[EMA] for k, s in state.slots.items()} if weights == "ema" else state.weights
        return evaluated(self._learner.task, chosen, state.state, batch)
