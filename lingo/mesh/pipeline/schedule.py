"""Schedules of pipelines: which stage works on which micro-batch, forward or backward, and when.

K stages, M micro-batches, R rounds, f and b units of time for a forward and a backward step. All
schedules here are synchronous: they begin and end with empty stages, one update of the weights.

    fill_drain(4, 8)                 # idle (K-1)/(M+K-1), all M micro-batches live on each stage
    one_forward_one_backward(4, 8)   # as long, but min(M, K-s) of them live on stage s
    circular(4, 8, num_rounds=2)     # idle (K-1)/(R M+K-1): each step is 1/R of a stage's layers
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from lingo.config.params import ParamError
from lingo.mesh.pipeline.clock import Step, place, timed


class Work(NamedTuple):
    """A step of a schedule.

    Attributes:
        stage: from 0.
        micro_batch: from 0.
        round: from 0; 0 unless the schedule is circular.
        backward: whether it is the backward pass.
        start: in units of time.
        end: in units of time, exclusive.
    """

    stage: int
    micro_batch: int
    round: int
    backward: bool
    start: int
    end: int

    @property
    def step(self) -> Step:
        """What is done, without when."""
        return Step(*self[:4])


class Schedule(NamedTuple):
    """Work of all stages for one batch.

    Attributes:
        name: of the kind of schedule.
        num_stages: K.
        num_micro_batches: M.
        num_rounds: R; stage s has the blocks s, K + s, ..., (R - 1) K + s of the layers.
        work: every step once, in any order.
    """

    name: str
    num_stages: int
    num_micro_batches: int
    num_rounds: int
    work: tuple[Work, ...]

    @property
    def makespan(self) -> int:
        """Units of time from 0 to the end of the last step."""
        return max(work.end for work in self.work)

    @property
    def idle(self) -> int:
        """Units of time in which stages do nothing, summed over stages."""
        busy = sum(work.end - work.start for work in self.work)
        return self.num_stages * self.makespan - busy

    @property
    def bubble_fraction(self) -> float:
        """Share of the time of all stages in which they are idle."""
        return self.idle / (self.num_stages * self.makespan)

    def by_stage(self) -> tuple[tuple[Work, ...], ...]:
        """Returns the work of each stage, in the order of time."""
        found: list[list[Work]] = [[] for _ in range(self.num_stages)]
        for work in sorted(self.work, key=lambda w: w.start):
            found[work.stage].append(work)
        return tuple(map(tuple, found))

    def of_stage(self, stage: int) -> tuple[Work, ...]:
        """Returns the work of one stage, in the order of time."""
        return self.by_stage()[stage]

    def live_activations(self) -> tuple[int, ...]:
        """Returns of each stage how many (micro-batch, round) it holds activations for, at most.

        These are live from the start of the forward step to the end of the backward step.
        """
        found: list[int] = []
        for stage in self.by_stage():
            changes = sorted((w.end, -1) if w.backward else (w.start, 1) for w in stage)
            found.append(max(itertools.accumulate(change for _, change in changes)))
        return tuple(found)

    def check(self) -> None:
        """Checks work that was written by hand.

        Raises:
            ParamError: if a step is missing or there twice, if one takes no time, if two overlap on
                a stage, or if one begins before the step that it needs has ended.
        """
        sizes = [self.num_stages, self.num_micro_batches, self.num_rounds, 2]
        every = {Step(s, m, r, bool(b)) for s, m, r, b in itertools.product(*map(range, sizes))}
        given = {work.step for work in self.work}
        if given != every or len(self.work) != len(every):
            raise ParamError(
                f"the schedule {self.name!r} needs each of {len(every)} steps once; it has"
                f" {len(self.work)} steps, and {len(every - given)} are missing"
            )
        for work in self.work:
            if not 0 <= work.start < work.end:
                raise ParamError(
                    f"on stage {work.stage} the {work.step} takes from {work.start} to {work.end};"
                    " it needs a unit of time at least, from 0 on"
                )
        for work, later in itertools.chain(*map(itertools.pairwise, self.by_stage())):
            if later.start < work.end:
                raise ParamError(f"on stage {work.stage} the {work.step} overlaps {later.step}")
        steps = sorted(self.work, key=lambda w: (w.micro_batch, self._place(w)))
        for work, later in itertools.pairwise(steps):
            if work.micro_batch == later.micro_batch and later.start < work.end:
                raise ParamError(
                    f"on stage {later.stage} the {later.step} begins at {later.start}, before it"
                    f" has what ends at {work.end} on stage {work.stage}"
                )

    def _place(self, work: Work) -> int:
        return place(work.step, self.num_stages, self.num_rounds)


def fill_drain(
    num_stages: int, num_micro_batches: int, forward: int = 1, backward: int = 2
) -> Schedule:
    """Returns GPipe's schedule: all forwards, then all backwards (Huang et al. 2019, sec. 2.2).

    Micro-batches go backward in reverse. It takes (M + K - 1)(f + b); the bubble is that of
    sec. 2.3.

    Args:
        num_stages: K.
        num_micro_batches: M.
        forward: units of time of a forward step.
        backward: units of time of a backward step.

    Raises:
        ParamError: if a size or a time is below 1.
    """
    _check(num_stages, num_micro_batches, 1, forward, backward)
    orders = [_forwards_first(s, num_micro_batches, 1) for s in range(num_stages)]
    return _schedule("fill_drain", orders, num_micro_batches, 1, forward, backward)


def one_forward_one_backward(
    num_stages: int, num_micro_batches: int, forward: int = 1, backward: int = 2
) -> Schedule:
    """Returns PipeDream-Flush (Narayanan et al. 2021, fig. 4): as long as `fill_drain`, less live.

    Stage s goes forward until the first backward can come, then takes turns. It holds at most
    min(M, K - s) micro-batches.

    Args:
        num_stages: K.
        num_micro_batches: M.
        forward: units of time of a forward step.
        backward: units of time of a backward step.

    Raises:
        ParamError: if a size or a time is below 1.
    """
    _check(num_stages, num_micro_batches, 1, forward, backward)
    orders = [
        _taking_turns(stage, num_micro_batches, num_stages - 1 - stage)
        for stage in range(num_stages)
    ]
    return _schedule("one_forward_one_backward", orders, num_micro_batches, 1, forward, backward)


def circular(
    num_stages: int,
    num_micro_batches: int,
    num_rounds: int,
    forward: int = 1,
    backward: int = 2,
) -> Schedule:
    """Returns `fill_drain` round the stages several times (Xu et al. 2021, sec. 3.3).

    Stage s has the blocks s, K + s, ... of R K. All micro-batches pass in one round before the next
    begins. It takes (R M + K - 1)(f + b), with steps of 1/R of the layers of a stage.

    Args:
        num_stages: K.
        num_micro_batches: M, at least K.
        num_rounds: R.
        forward: units of time of a forward step, of one block.
        backward: units of time of a backward step, of one block.

    Raises:
        ParamError: if a size or a time is below 1, or if M is below K.
    """
    _check(num_stages, num_micro_batches, num_rounds, forward, backward)
    if num_micro_batches < num_stages:
        raise ParamError(
            f"a circular schedule of {num_stages} stages needs as many micro-batches, not"
            f" {num_micro_batches}: with fewer, the first stage would wait at each round until the"
            " first micro-batch comes back from the last"
        )
    orders = [_forwards_first(s, num_micro_batches, num_rounds) for s in range(num_stages)]
    return _schedule("circular", orders, num_micro_batches, num_rounds, forward, backward)


def _forwards_first(stage: int, num_micro_batches: int, num_rounds: int) -> list[Step]:
    pairs = itertools.product(range(num_rounds), range(num_micro_batches))
    forwards = [Step(stage, m, r, False) for r, m in pairs]
    return forwards + [step._replace(backward=True) for step in reversed(forwards)]


def _taking_turns(stage: int, num_micro_batches: int, num_ahead: int) -> list[Step]:
    """Returns steps forward, so many of them ahead of the first step backward."""
    forwards = [Step(stage, m, 0, False) for m in range(num_micro_batches)]
    backwards = [step._replace(backward=True) for step in forwards]
    ahead = min(num_ahead, num_micro_batches)
    turns = itertools.chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    return [*forwards[:ahead], *turns, *backwards[num_micro_batches - ahead :]]


def _schedule(
    name: str,
    orders: list[list[Step]],
    num_micro_batches: int,
    num_rounds: int,
    forward: int,
    backward: int,
) -> Schedule:
    entries = timed(orders, num_rounds, lambda step: backward if step.backward else forward, 0)
    work = tuple(Work(*step, start, end) for step, start, end in entries)
    return Schedule(name, len(orders), num_micro_batches, num_rounds, work)


def _check(*sizes: int) -> None:
    names = ("num_stages", "num_micro_batches", "num_rounds", "forward", "backward")
    for name, size in zip(names, sizes, strict=True):
        if size < 1:
            raise ParamError(f"a schedule of a pipeline has {name}={size}; it needs 1 at least")
