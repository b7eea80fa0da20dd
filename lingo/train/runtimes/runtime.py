"""The contract of a runtime: which devices compute the step, and where the state lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from lingo.config.params import Configurable
from lingo.train.state import Learner, TrainState


class Program(Protocol):
    """A learner at work on some devices. It owns the state until it is asked for."""

    def compile(self, specs: Mapping[str, tuple[tuple[int, ...], str]], *, num_steps: int) -> None:
        """Traces `train`, so that layers that do not fit together are found before a run begins.

        Args:
            specs: name -> (shape, dtype) of a batch.
            num_steps: K of most calls.
        """
        ...

    def train(self, batches: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Does K steps.

        Args:
            batches: [K, B, ...] arrays, one batch a step.

        Returns:
            `scalars`, tag -> float32 [K]; `states`, additive metric states, [K] each.
        """
        ...

    def evaluate(
        self, batch: Mapping[str, np.ndarray], *, weights: str = "trained"
    ) -> dict[str, Any]:
        """Returns the metric states of a batch.

        Args:
            batch: [B, ...] arrays.
            weights: "trained" or "ema".
        """
        ...

    def state(self) -> TrainState:
        """Returns the state after the last step, as arrays on the host."""
        ...


class Runtime(Configurable, kind=True):
    """How steps are computed: the value of an experiment's `mesh`."""

    def start(self, learner: Learner, state: TrainState) -> Program:
        """Puts a state on the devices and returns the program that trains it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")
