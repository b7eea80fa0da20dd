"""Schedules of pipelines: when each stage processes which micro-batch, forward or backward.

K stages, M micro-batches, R repeats. A micro-batch takes 2 R K steps, one after the other: forward
through the K stages, R times, then backward in reverse order. So a step depends only on the one
before it, and the order of steps on each stage determines the schedule: a step starts as soon as
its stage is free and the step before it has ended.

All schedules are synchronous: each update of the weights begins and ends with empty stages.

    fill_drain(4, 8)                 # idle (K-1)/(M+K-1), all M micro-batches live on each stage
    one_forward_one_backward(4, 8)   # same makespan, but only min(M, K-s) live on stage s
    circular(4, 8, num_repeats=2)    # idle (K-1)/(R M+K-1): each step is 1/R of a stage's layers
    fill_drain(2, 3).with_durations([[1.0, 2.5]], [[2.0, 5.0]])    # unequal stages, in seconds
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Step(NamedTuple):
    """One forward or backward pass of a micro-batch on a stage; indices count from 0."""

    stage: int
    micro_batch: int
    repeat: int  # how often the micro-batch has passed all stages before
    backward: bool


class Work(NamedTuple):
    """A step and its time in the schedule's unit: integers, unless durations were given."""

    step: Step
    start: float
    end: float


class Schedule(NamedTuple):
    """The timetable of a pipeline for one batch."""

    name: str  # of the kind of schedule
    num_micro_batches: int  # M
    num_repeats: int  # R; of R K groups of layers, stage s has s, K + s, ..., (R - 1) K + s
    stages: tuple[tuple[Work, ...], ...]  # [K], the work of each stage in chronological order

    @property
    def num_stages(self) -> int:
        """Number of stages, K."""
        return len(self.stages)

    @property
    def makespan(self) -> float:
        """Time from the start of the first step to the end of the last."""
        return max(stage[-1].end for stage in self.stages)

    @property
    def busy(self) -> tuple[float, ...]:
        """Time that each stage works."""
        return tuple(sum(work.end - work.start for work in stage) for stage in self.stages)

    @property
    def idle(self) -> float:
        """Time that stages are idle, summed over stages."""
        return self.num_stages * self.makespan - sum(self.busy)

    @property
    def bubble_fraction(self) -> float:
        """Idle time as a fraction of the time of all stages; 0 if the makespan is 0."""
        total = self.num_stages * self.makespan
        return self.idle / total if total else 0.0

    def live_activations(self) -> tuple[int, ...]:
        """Returns for each stage the most (micro-batch, repeat) pairs with live activations.

        Activations are live from the start of the forward step to the end of the backward step.
        """
        peaks: list[int] = []
        for stage in self.stages:
            changes = sorted((w.end, -1) if w.step.backward else (w.start, 1) for w in stage)
            peaks.append(max(itertools.accumulate(change for _, change in changes)))
        return tuple(peaks)

    def with_durations(self, forward: ArrayLike, backward: ArrayLike) -> Schedule:
        """Returns a schedule with the same order of steps and given durations, [R, K] in one unit.

        Sending activations takes no time, and stages do not slow each other down.
        """
        table = np.array([forward, backward], np.float64).tolist()
        orders = [[work.step for work in stage] for stage in self.stages]
        stages = _assign_times(
            orders, self.num_repeats, lambda step: table[step.backward][step.repeat][step.stage]
        )
        return self._replace(stages=stages)


def _assign_times(
    orders: Sequence[Iterable[Step]], num_repeats: int, duration: Callable[[Step], float]
) -> tuple[tuple[Work, ...], ...]:
    """Returns the work of each of K stages: its steps in order, each as early as it can start."""
    queues = [deque(order) for order in orders]
    stages: list[list[Work]] = [[] for _ in orders]
    num_done = defaultdict[int, int](int)  # steps done of each micro-batch
    last_end = defaultdict[int, float](int)  # end of the last step of each micro-batch

    while any(queues):
        for queue, works in zip(queues, stages, strict=True):
            while queue and num_done[queue[0].micro_batch] == _position(
                queue[0], len(orders), num_repeats
            ):
                step = queue.popleft()
                start = max(works[-1].end if works else 0, last_end[step.micro_batch])
                last_end[step.micro_batch] = end = start + duration(step)
                num_done[step.micro_batch] += 1
                works.append(Work(step, start, end))
    return tuple(map(tuple, stages))


def _position(step: Step, num_stages: int, num_repeats: int) -> int:
    """Returns the number of steps of the same micro-batch that come before a step."""
    index = step.repeat * num_stages + step.stage
    return 2 * num_repeats * num_stages - 1 - index if step.backward else index


def fill_drain(num_stages: int, num_micro_batches: int, backward: int = 2) -> Schedule:
    """Returns GPipe's schedule: all forwards, then all backwards (Huang et al. 2019, sec. 2.2).

    A forward step takes 1 unit of time, a backward step `backward` units, b. Backward steps are in
    reverse order of micro-batches. The makespan is (M + K - 1)(1 + b); the bubble is that of
    sec. 2.3.
    """
    return _forwards_first("fill_drain", num_stages, num_micro_batches, 1, backward)


def circular(
    num_stages: int, num_micro_batches: int, num_repeats: int, backward: int = 2
) -> Schedule:
    """Returns `fill_drain` through the stages several times (Xu et al. 2021, sec. 3.3); M >= K.

    Each stage processes all micro-batches of a repeat before the next repeat. The makespan is
    (R M + K - 1)(1 + b), where a step has 1/R of the layers of a stage.
    """
    return _forwards_first("circular", num_stages, num_micro_batches, num_repeats, backward)


def one_forward_one_backward(
    num_stages: int, num_micro_batches: int, backward: int = 2
) -> Schedule:
    """Returns the schedule PipeDream-Flush (Narayanan et al. 2021, fig. 4).

    Stage s runs forward steps until its first backward step can start, then alternates. It holds
    activations of at most min(M, K - s) micro-batches; the makespan is that of `fill_drain`.
    """
    orders: list[list[Step]] = []
    for stage in range(num_stages):
        forwards = [Step(stage, m, 0, False) for m in range(num_micro_batches)]
        backwards = [step._replace(backward=True) for step in forwards]
        ahead = min(num_stages - 1 - stage, num_micro_batches)
        pairs = itertools.chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
        orders.append([*forwards[:ahead], *pairs, *backwards[num_micro_batches - ahead :]])
    return _schedule("one_forward_one_backward", orders, num_micro_batches, 1, backward)


def _forwards_first(
    name: str, num_stages: int, num_micro_batches: int, num_repeats: int, backward: int
) -> Schedule:
    orders: list[list[Step]] = []
    for stage in range(num_stages):
        pairs = itertools.product(range(num_repeats), range(num_micro_batches))
        forwards = [Step(stage, m, r, False) for r, m in pairs]
        orders.append(forwards + [step._replace(backward=True) for step in reversed(forwards)])
    return _schedule(name, orders, num_micro_batches, num_repeats, backward)


def _schedule(
    name: str, orders: list[list[Step]], num_micro_batches: int, num_repeats: int, backward: int
) -> Schedule:
    stages = _assign_times(orders, num_repeats, lambda step: backward if step.backward else 1)
    return Schedule(name, num_micro_batches, num_repeats, stages)
