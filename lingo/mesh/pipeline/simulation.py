"""A schedule of a pipeline in seconds: simulated from the time that each stage takes.

Nothing runs. Stages keep the order of the schedule, and each begins a step as soon as it is free
and what it needs has ended; to send that on takes no time. The seconds of a step are given: they
may have been measured, what is made of them has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.pipeline.clock import Step, timed
from lingo.mesh.pipeline.schedule import Schedule


class Event(NamedTuple):
    """A step of a simulation.

    Attributes:
        stage: from 0.
        micro_batch: from 0.
        round: from 0.
        backward: whether it is the backward pass.
        start_seconds: from the start of the first step.
        end_seconds: from the start of the first step.
    """

    stage: int
    micro_batch: int
    round: int
    backward: bool
    start_seconds: float
    end_seconds: float


class Timeline(NamedTuple):
    """A simulation of a schedule.

    Attributes:
        num_stages: K.
        events: stage after stage, in the order of time.
    """

    num_stages: int
    events: tuple[Event, ...]

    @property
    def makespan_seconds(self) -> float:
        """From the start of the first step to the end of the last."""
        return max(event.end_seconds for event in self.events)

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """In which each stage works."""
        busy = [0.0] * self.num_stages
        for event in self.events:
            busy[event.stage] += event.end_seconds - event.start_seconds
        return tuple(busy)

    @property
    def bubble_fraction(self) -> float:
        """Share of the time of all stages in which they are idle; 0 if nothing takes time."""
        whole = self.num_stages * self.makespan_seconds
        return (whole - sum(self.busy_seconds)) / whole if whole else 0.0


Seconds = Sequence[float] | Sequence[Sequence[float]] | NDArray[np.floating]
"""[K], of each stage, the same in every round; or [R, K], of each stage in each round."""


def simulate(schedule: Schedule, forward_seconds: Seconds, backward_seconds: Seconds) -> Timeline:
    """Returns the simulated times of a schedule: its order of work, with given durations.

    It is a simulation: it leaves out communication, and what stages that share a machine take from
    each other.

    Args:
        schedule: K stages, R rounds; its own times do not count.
        forward_seconds: [K] or [R, K], of a forward step of each stage (in each round).
        backward_seconds: [K] or [R, K], of a backward step.

    Raises:
        ParamError: for another shape, for times that are negative or not finite, or if the order of
            a schedule that was written by hand cannot be kept.
    """
    sizes = (schedule.num_rounds, schedule.num_stages)
    tables = [
        _table("forward_seconds", forward_seconds, sizes),
        _table("backward_seconds", backward_seconds, sizes),
    ]

    def duration(step: Step) -> float:
        return tables[step.backward][step.round][step.stage]

    orders = [[work.step for work in stage] for stage in schedule.by_stage()]
    entries = timed(orders, schedule.num_rounds, duration, 0.0)
    return Timeline(schedule.num_stages, tuple(Event(*step, a, b) for step, a, b in entries))


def _table(name: str, seconds: Seconds, sizes: tuple[int, int]) -> list[list[float]]:
    """Returns seconds of each round and stage."""
    given = np.asarray(seconds, np.float64)
    if given.shape not in (sizes, sizes[1:]):
        raise ParamError(
            f"{name} has the shape {list(given.shape)}; it needs one time of each stage,"
            f" [{sizes[1]}], or of each stage in each round, {list(sizes)}"
        )
    if not (np.isfinite(given) & (given >= 0)).all():
        raise ParamError(f"{name} has a time that is negative or not finite: {given.tolist()}")
    return np.broadcast_to(given, sizes).tolist()
