"""The length of the run in which a schedule is used."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class RunLength(Protocol):
    """The length of a run, which may be known only when the training data is open."""

    @property
    def steps(self) -> float:
        """The number of steps in the run."""
        ...

    @property
    def steps_per_epoch(self) -> float:
        """The mean number of steps in a pass over the training data; it may not be whole."""
        ...


class KnownLength(NamedTuple):
    """The length of a run, given in numbers."""

    steps: float
    steps_per_epoch: float = 1.0
