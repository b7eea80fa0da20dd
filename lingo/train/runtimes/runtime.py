"""The contract of a runtime: which devices compute the step, and where the state lives."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from lingo.config.params import Configurable
from lingo.decode.sampling import Sampling
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.train.state import Learner, TrainState

_NODE = re.compile(r"\{\{node (.*?)\}\}")
_PLUMBING = re.compile(
    r"\[\[?\{\{.*?\}\}\]\]?|\[Op:.*?\]|tf2xla conversion failed.*|"
    r"^(Graph execution error:|Detected at node|Stack trace for op|\s*File \"|<stack traces).*",
    re.MULTILINE,
)
"""What TensorFlow's messages say about its graph rather than about what went wrong."""


class ProgramError(LingoError):
    """A device could not compute what it was told to."""


@contextlib.contextmanager
def computing(what: str) -> Iterator[None]:
    """Turns an error of TensorFlow's graphs inside into a ProgramError with all that it says.

    Args:
        what: is computed, for the message: "step 12".
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise ProgramError(f"{what}: {_explained(error)}") from error


def _explained(error: tf.errors.OpError) -> str:
    """Returns kind and message of an error without its call stacks, and the layer if it has one."""
    lines = (" ".join(line.split()) for line in _PLUMBING.sub("", error.message).splitlines())
    said = "; ".join(dict.fromkeys(line for line in lines if line)) or "no message"
    found = _NODE.search(error.message)
    place = f", in {found[1]}" if found else ""
    return f"{type(error).__name__}: {said}{place}"


class Program(Protocol):
    """A learner at work on some devices. It owns the state until it is asked for."""

    def compile(self, specs: Mapping[str, tuple[tuple[int, ...], str]], *, num_steps: int) -> None:
        """Traces `train`, so that layers that do not fit together are found before a run begins.

        Args:
            specs: name -> (shape, dtype) of a batch.
            num_steps: K of most calls.
        """
        ...

    def graph(self, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> tf.Graph:
        """Returns the graph of one step, as `compile` traced it.

        Args:
            specs: as for `compile`.
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

    def decode(
        self,
        batch: Mapping[str, np.ndarray],
        sampling: Sampling,
        *,
        seed: int = 0,
        weights: str = "trained",
    ) -> dict[str, np.ndarray]:
        """Continues the prompts of a batch, as `Task.decode` does.

        Args:
            batch: [B, ...] arrays.
            sampling: how tokens are chosen; what is compiled for it stays with this very object.
            seed: of what is drawn.
            weights: "trained" or "ema".
        """
        ...

    def state(self) -> TrainState:
        """Returns the state after the last step, as arrays on the host."""
        ...

    def load(self, state: TrainState) -> None:
        """Goes on from another state of the same learner, arrays on the host; stays compiled."""
        ...


class Runtime(Configurable, kind=True):
    """How steps are computed: the value of an experiment's `mesh`."""

    def start(self, learner: Learner, state: TrainState) -> Program:
        """Puts a state on the devices and returns the program that trains it."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    def matmul_flops_per_second(self, dtype: str) -> float:
        """Returns the measured peak of all devices together, a multiply-add as two operations.

        Args:
            dtype: of the matrices that are multiplied.
        """
        raise NotImplementedError(f"{type(self).__name__} has no matmul_flops_per_second")
