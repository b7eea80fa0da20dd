"""Numbers of steps that a configuration may give in epochs: a run's length, and intervals in it.

An epoch is a pass over the training data, so the data is opened when such a number is first needed.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from lingo.config.params import ParamError
from lingo.data.input import MAX_STEPS, Input


class RunLength(NamedTuple):
    """The length of a run: `max_steps`, or as many steps as make `max_epochs` passes."""

    input: Input  # the training data
    max_steps: int | None
    max_epochs: float | None = None

    @property
    def steps(self) -> int:
        """The number of steps.

        If it is in epochs, raises DataError if the data is not readable, and ParamError if the
        steps are more than `MAX_STEPS`.
        """
        return _count_steps(self.input, self.max_steps, self.max_epochs)

    @property
    def steps_per_epoch(self) -> float:
        """The mean number of steps in a pass; not whole if a batch has examples of two passes."""
        first, mean = 1.0 / self.input.epochs(1), self.steps / self.input.epochs(self.steps)
        return first if math.isclose(first, mean) else mean  # stages and tasks differ in size


class Cadence(NamedTuple):
    """An interval between events of a run: a number of steps, or of passes over the data."""

    input: Input  # the training data
    every_steps: int | None
    every_epochs: float | None = None

    def is_due(self, step: int) -> bool:
        """Returns whether an interval ends with the last of `step` steps."""
        return step > 0 and self.next_step(step - 1) == step

    def next_step(self, step: int) -> int:
        """Returns the first number of steps above `step` at which an interval ends."""
        if self.every_epochs is None:
            every = self.every_steps or 1
            return (step // every + 1) * every
        number = int(self.input.epochs(step) / self.every_epochs)
        while (found := self.input.steps_of(number * self.every_epochs)) <= step:
            number += 1
        return found


@functools.lru_cache(maxsize=8)
def _count_steps(input: Input, max_steps: int | None, max_epochs: float | None) -> int:
    if max_epochs is None:
        return max_steps or 1
    if (steps := input.steps_of(max_epochs)) > MAX_STEPS:
        raise ParamError(f"{max_epochs=} takes more than {MAX_STEPS:,} steps, the most of a run")
    return steps


def check_unit(p: Any, steps: str, epochs: str, *, place: str = "") -> None:
    """Raises ParamError unless one of two fields of `p` is None: numbers of steps and of epochs.

    `place` is the path of `p`, for the message.
    """
    given = {name: getattr(p, name) for name in (steps, epochs)}
    if all(value is None for value in given.values()):
        raise ParamError(f"{place}{steps} and {place}{epochs} are both None: set one of them")
    if None not in given.values():
        both = " and ".join(f"{place}{name}={value}" for name, value in given.items())
        raise ParamError(
            f"{both} exclude each other: set {place}{steps}=None to count epochs, or"
            f" {place}{epochs}=None to count steps"
        )
