"""Schedules of pipelines: which stage works on which micro-batch, forward or backward, and when.

K stages, M micro-batches, R repeats. A micro-batch takes 2 R K steps, one after the other: forward
through the K stages, R times, then backward the same way in reverse. So a step needs just the one
before it, and an order of steps for each stage is a whole schedule: a step starts as soon as its
stage is free and the step before it has ended.

All schedules here are synchronous: they begin and end with empty stages, one update of the weights.

    fill_drain(4, 8)                 # idle (K-1)/(M+K-1), all M micro-batches live on each stage
    one_forward_one_backward(4, 8)   # as long, but min(M, K-s) of them live on stage s
    circular(4, 8, num_repeats=2)    # idle (K-1)/(R M+K-1): each step is 1/R of a stage's layers
    fill_drain(2, 3).with_durations([[1.0, 2.5]], [[2.0, 5.0]])    # of unequal stages, in seconds
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lingo.config.params import ParamError


class Step(NamedTuple):
    """What a stage does with a micro-batch.

    Attributes:
        stage: from 0.
        micro_batch: from 0.
        repeat: from 0; how often the micro-batch has gone through all stages before.
        backward: whether it is the backward pass.
    """

    stage: int
    micro_batch: int
    repeat: int
    backward: bool

    def __str__(self) -> str:
        direction = "backward" if self.backward else "forward"
        return f"{direction} of micro-batch {self.micro_batch} in repeat {self.repeat}"


class Work(NamedTuple):
    """A step and its time, in the schedule's unit; whole numbers unless durations are given."""

    step: Step
    start: float
    end: float


class Schedule(NamedTuple):
    """The clock of a pipeline for one batch.

    Attributes:
        name: of the kind of schedule.
        num_micro_batches: M.
        num_repeats: R; stage s has the layers s, K + s, ..., (R - 1) K + s of R K groups.
        stages: [K], the work of each stage in the order of time.
    """

    name: str
    num_micro_batches: int
    num_repeats: int
    stages: tuple[tuple[Work, ...], ...]

    @property
    def num_stages(self) -> int:
        """K."""
        return len(self.stages)

    @property
    def makespan(self) -> float:
        """Time from the start of the first step to the end of the last."""
        return max(stage[-1].end for stage in self.stages)

    @property
    def busy(self) -> tuple[float, ...]:
        """Time in which each stage works."""
        return tuple(sum(work.end - work.start for work in stage) for stage in self.stages)

    @property
    def idle(self) -> float:
        """Time in which stages do nothing, summed over stages."""
        return self.num_stages * self.makespan - sum(self.busy)

    @property
    def bubble_fraction(self) -> float:
        """Share of the time of all stages in which they are idle; 0 if nothing takes time."""
        total = self.num_stages * self.makespan
        return self.idle / total if total else 0.0

    def live_activations(self) -> tuple[int, ...]:
        """Returns for each stage how many (micro-batch, repeat) it holds activations of at most.

        Activations are live from the start of the forward step to the end of the backward step.
        """
        peaks: list[int] = []
        for stage in self.stages:
            changes = sorted((w.end, -1) if w.step.backward else (w.start, 1) for w in stage)
            peaks.append(max(itertools.accumulate(change for _, change in changes)))
        return tuple(peaks)

    def with_durations(self, forward: ArrayLike, backward: ArrayLike) -> Schedule:
        """Returns the same order of steps in the time that these steps take.

        Sending activations takes no time, and stages take none from each other.

        Args:
            forward: [R, K], of a forward step of each stage in each repeat; any unit.
            backward: [R, K], of a backward step.

        Raises:
            ParamError: for another shape, or a time that is negative or not finite.
        """
        shape = (self.num_repeats, self.num_stages)
        for name, times in (("forward", forward), ("backward", backward)):
            if np.shape(times) != shape:
                raise ParamError(
                    f"{name} has the shape {list(np.shape(times))}; it needs a time for each stage"
                    f" in each repeat, {list(shape)}"
                )
            if not (np.isfinite(times) & np.greater_equal(times, 0)).all():
                raise ParamError(f"{name} has a time that is negative or not finite: {times}")
        table = np.array([forward, backward], np.float64).tolist()
        orders = [[work.step for work in stage] for stage in self.stages]
        stages = assign_times(
            orders, self.num_repeats, lambda step: table[step.backward][step.repeat][step.stage]
        )
        return self._replace(stages=stages)


def assign_times(
    orders: Sequence[Iterable[Step]], num_repeats: int, duration: Callable[[Step], float]
) -> tuple[tuple[Work, ...], ...]:
    """Returns the work of each stage: every step as early as it can start.

    Args:
        orders: [K], the steps of each stage.
        num_repeats: R.
        duration: how long a step takes.

    Raises:
        ParamError: if a step waits for one that never comes, or comes later on the same stage.
    """
    queues = [deque(order) for order in orders]
    stages: list[list[Work]] = [[] for _ in orders]
    num_done = defaultdict[int, int](int)  # steps of each micro-batch
    last_end = defaultdict[int, float](int)  # of each micro-batch

    while any(queues):
        before = sum(num_done.values())
        for queue, works in zip(queues, stages, strict=True):
            while queue and num_done[queue[0].micro_batch] == position(
                queue[0], len(orders), num_repeats
            ):
                step = queue.popleft()
                start = max(works[-1].end if works else 0, last_end[step.micro_batch])
                last_end[step.micro_batch] = end = start + duration(step)
                num_done[step.micro_batch] += 1
                works.append(Work(step, start, end))
        if sum(num_done.values()) == before:
            stage, queue = next((i, queue) for i, queue in enumerate(queues) if queue)
            raise ParamError(
                f"stage {stage} waits for ever with its {queue[0]}: the step before it never comes."
                " Each stage needs every step once, in an order that the others can follow"
            )
    return tuple(map(tuple, stages))


def position(step: Step, num_stages: int, num_repeats: int) -> int:
    """Returns how many steps of its micro-batch come before a step."""
    index = step.repeat * num_stages + step.stage
    return 2 * num_repeats * num_stages - 1 - index if step.backward else index


def fill_drain(num_stages: int, num_micro_batches: int, backward: int = 2) -> Schedule:
    """Returns GPipe's schedule: all forwards, then all backwards (Huang et al. 2019, sec. 2.2).

    A forward step takes 1 unit of time, a backward step b. Micro-batches go backward in reverse. It
    takes (M + K - 1)(1 + b); the bubble is that of sec. 2.3.

    Args:
        num_stages: K.
        num_micro_batches: M.
        backward: b, whole units of time of a backward step.

    Raises:
        ParamError: if a size or a time is below 1.
    """
    return _forwards_first("fill_drain", num_stages, num_micro_batches, 1, backward)


def circular(
    num_stages: int, num_micro_batches: int, num_repeats: int, backward: int = 2
) -> Schedule:
    """Returns `fill_drain` through the stages several times (Xu et al. 2021, sec. 3.3).

    All micro-batches pass in one repeat before the next begins. It takes (R M + K - 1)(1 + b), with
    steps of 1/R of the layers of a stage.

    Args:
        num_stages: K.
        num_micro_batches: M, at least K.
        num_repeats: R.
        backward: b, whole units of time of a backward step.

    Raises:
        ParamError: if a size or a time is below 1, or if M is below K.
    """
    if num_micro_batches < num_stages:
        raise ParamError(
            f"a circular schedule of {num_stages} stages needs as many micro-batches, not"
            f" {num_micro_batches}: with fewer, the first stage would wait in each repeat until the"
            " first micro-batch comes back from the last"
        )
    return _forwards_first("circular", num_stages, num_micro_batches, num_repeats, backward)


def one_forward_one_backward(
    num_stages: int, num_micro_batches: int, backward: int = 2
) -> Schedule:
    """Returns PipeDream-Flush (Narayanan et al. 2021, fig. 4): as long as `fill_drain`, less live.

    Stage s goes forward until the first backward can come, then alternates. It holds at most
    min(M, K - s) micro-batches.

    Args:
        num_stages: K.
        num_micro_batches: M.
        backward: b, whole units of time of a backward step.

    Raises:
        ParamError: if a size or a time is below 1.
    """
    _check(num_stages, num_micro_batches, 1, backward)
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
    _check(num_stages, num_micro_batches, num_repeats, backward)
    orders: list[list[Step]] = []
    for stage in range(num_stages):
        pairs = itertools.product(range(num_repeats), range(num_micro_batches))
        forwards = [Step(stage, m, r, False) for r, m in pairs]
        orders.append(forwards + [step._replace(backward=True) for step in reversed(forwards)])
    return _schedule(name, orders, num_micro_batches, num_repeats, backward)


def _schedule(
    name: str, orders: list[list[Step]], num_micro_batches: int, num_repeats: int, backward: int
) -> Schedule:
    stages = assign_times(orders, num_repeats, lambda step: backward if step.backward else 1)
    return Schedule(name, num_micro_batches, num_repeats, stages)


def _check(*sizes: int) -> None:
    names = ("num_stages", "num_micro_batches", "num_repeats", "backward")
    for name, size in zip(names, sizes, strict=True):
        if size < 1:
            raise ParamError(f"a schedule of a pipeline has {name}={size}; it needs 1 at least")
