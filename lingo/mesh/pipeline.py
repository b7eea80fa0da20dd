"""Pipelines: the split of layers into stages, schedules of micro-batches, and their drawings.

K stages, M micro-batches, R repeats. A micro-batch takes 2 R K steps, one after the other: forward
through the K stages, R times, then backward in reverse order. So a step depends only on its
micro-batch's previous step, and the order of steps on each stage determines the schedule: a step
starts as soon as its stage is free and the previous step has ended. Each update of the weights
begins and ends with empty stages.

    partition([10, 1, 1, 1], 2)      # (range(0, 1), range(1, 4)): stages of unequal layers
    fill_drain(4, 8)                 # idle (K-1)/(M+K-1), all M micro-batches live on each stage
    one_forward_one_backward(4, 8)   # same makespan, but only min(M, K-s) live on stage s
    circular(4, 8, num_repeats=2)    # idle (K-1)/(R M+K-1): each step is 1/R of a stage's layers
    fill_drain(2, 3).with_durations([[1.0, 2.5]], [[2.0, 5.0]])    # unequal stages, in seconds

`draw_text` shows a schedule, a row for each stage, time to the right:

    stage 0  0 1 2 . . . . 2<<<1<<<0<<<
    stage 1  . 0 1 2 . . 2<<<1<<<0<<<. .
"""

from __future__ import annotations

import itertools
import math
import textwrap
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lingo.config.params import ParamError


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

    name: str  # the kind of schedule
    num_micro_batches: int  # M
    num_repeats: int  # R; stage s has the groups of layers s, K + s, ..., (R - 1) K + s
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
        """Returns each stage's largest number of (micro-batch, repeat) pairs with live activations.

        Activations are live from the start of the forward step to the end of the backward step.
        """
        peaks: list[int] = []
        for stage in self.stages:
            changes = sorted((w.end, -1) if w.step.backward else (w.start, 1) for w in stage)
            peaks.append(max(itertools.accumulate(change for _, change in changes)))
        return tuple(peaks)

    def with_durations(self, forward: ArrayLike, backward: ArrayLike) -> Schedule:
        """Returns a schedule with the same order of steps and given durations, [R, K] in one unit.

        It assumes that sending activations takes no time and stages do not slow each other down.
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


def bubble_fraction(num_stages: int, num_micro_batches: int, num_repeats: int = 1) -> float:
    """Returns the idle share of K equal stages in each schedule below: (K - 1) / (R M + K - 1)."""
    return (num_stages - 1) / (num_micro_batches * num_repeats + num_stages - 1)


def fill_drain(num_stages: int, num_micro_batches: int, backward: int = 2) -> Schedule:
    """Returns GPipe's schedule: all forwards, then all backwards (Huang et al. 2019, sec. 2.2).

    A forward step takes 1 unit of time, a backward step b = `backward` units. Backward steps are in
    reverse order of micro-batches. The makespan is (M + K - 1)(1 + b); sec. 2.3 gives the bubble.
    """
    return _forwards_first("fill_drain", num_stages, num_micro_batches, 1, backward)


def circular(
    num_stages: int, num_micro_batches: int, num_repeats: int, backward: int = 2
) -> Schedule:
    """Returns a `fill_drain` that passes all stages R times (Xu et al. 2021, sec. 3.3); M >= K.

    Each stage processes all micro-batches of a repeat before the next repeat. The makespan is
    (R M + K - 1)(1 + b), where a step has 1/R of the layers of a stage.
    """
    return _forwards_first("circular", num_stages, num_micro_batches, num_repeats, backward)


def one_forward_one_backward(
    num_stages: int, num_micro_batches: int, backward: int = 2
) -> Schedule:
    """Returns the schedule PipeDream-Flush (Narayanan et al. 2021, fig. 4).

    Stage s runs forward steps until its first backward step can start, then alternates. It holds
    activations of at most min(M, K - s) micro-batches. The makespan is the same as with
    `fill_drain`.
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


# ---- the picture ---------------------------------------------------------------------------------

_LINE = 100  # characters
_CUT = " // "  # replaces the middle of a schedule that is wider than a line


def draw_text(schedule: Schedule) -> str:
    """Returns a drawing in characters, a cell for each unit of time, with a legend and totals.

    Times must be whole numbers. If a schedule is wider than a line, only its beginning and its end
    are drawn.
    """
    total, cell = int(schedule.makespan), len(str(schedule.num_micro_batches - 1)) + 1
    digits = len(str(schedule.num_stages - 1))
    head = tail = max((_LINE - digits - len("stage   ") - len(_CUT)) // cell, 2) // 2
    is_cut = total * cell > _LINE - digits - len("stage   ")
    lines: list[str] = []
    for i, works in enumerate(schedule.stages):
        cells = _cells(works, total, cell)
        row = f"{''.join(cells[:head])}{_CUT}{''.join(cells[-tail:])}" if is_cut else "".join(cells)
        lines.append(f"stage {i:>{digits}}  {row}".rstrip())
    legend = (
        "0 forward, 0< backward of micro-batch 0, . idle;"
        f" {cell} characters are 1 unit of time"
        f"{f'; {_CUT.strip()} leaves out {total - head - tail}' if is_cut else ''}"
    )
    totals = (
        f"makespan {total}, bubble fraction {schedule.bubble_fraction:.4f},"
        f" idle {int(schedule.idle)} of {schedule.num_stages * total}"
    )
    return "\n".join([*lines, textwrap.fill(legend, _LINE), totals])


def _cells(works: Sequence[Work], total: int, width: int) -> list[str]:
    """Returns a stage's characters for each unit of time."""
    cells = [".".ljust(width)] * total
    for work in works:
        mark = "<" if work.step.backward else " "
        for time in range(int(work.start), int(work.end)):
            number = str(work.step.micro_batch) if time == work.start else ""
            cells[time] = number.ljust(width, mark)
    return cells


# ---- the split into stages -----------------------------------------------------------------------


def partition(costs: Sequence[float], num_parts: int) -> tuple[range, ...]:
    """Splits n layers, in order, into `num_parts` (1..n) nonempty parts; returns their ranges.

    `costs` are [n] numbers such as FLOPs or seconds. The largest sum of a part is minimal, since
    the slowest stage limits the pipeline. This minimum is exact for floats, too. Among the splits
    with this largest sum, the sum of squares of the parts' sums is minimal, up to rounding in
    float64. GPipe minimizes only the sum of squares (Huang et al. 2019, sec. 2.2). Mostly both
    agree, but GPipe would split 1, 5, 2, 3 into 1 + 5 | 2 | 3, whose slowest stage takes 6. Raises
    ParamError if a cost is negative or not finite.
    """
    for layer, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise ParamError(f"layer {layer} costs {cost}: give a finite number of at least 0")
    sums = _sums(costs)
    bound = _least_bound(sums, num_parts)
    ends = _most_even(sums, num_parts, bound)
    return tuple(range(start, end) for start, end in itertools.pairwise([0, *ends]))


def _sums(costs: Sequence[float]) -> list[int]:
    """Returns the cost of the first 0, 1, ..., n layers, in a unit that makes all of them ints."""
    ratios = [Fraction(cost) for cost in costs]
    unit = math.lcm(*(ratio.denominator for ratio in ratios))
    whole = [int(ratio.numerator) * (unit // ratio.denominator) for ratio in ratios]
    divisor = math.gcd(*whole)
    if divisor == 0:  # all costs are 0: count layers instead
        return list(range(len(whole) + 1))
    return list(itertools.accumulate((cost // divisor for cost in whole), initial=0))


def _least_bound(sums: list[int], num_parts: int) -> int:
    """Returns the smallest possible cost of the largest part, by bisection."""
    low = max(after - before for before, after in itertools.pairwise(sums))
    high = sums[-1]
    while low < high:
        middle = (low + high) // 2
        if _farthest(sums, num_parts, middle)[-1] == len(sums) - 1:
            high = middle
        else:
            low = middle + 1
    return low


def _farthest(sums: list[int], num_parts: int, bound: int) -> list[int]:
    """Returns the most layers in the first 0, 1, ..., K parts if no part exceeds `bound`."""
    ends = [0]
    for _ in range(num_parts):
        ends.append(bisect_right(sums, sums[ends[-1]] + bound) - 1)
    return ends


def _nearest(sums: list[int], num_parts: int, bound: int) -> list[int]:
    """Returns the fewest layers in the first 0, 1, ..., K parts if no part exceeds `bound`."""
    starts = [len(sums) - 1]
    for _ in range(num_parts):
        starts.append(bisect_left(sums, sums[starts[-1]] - bound))
    return starts[::-1]


def _most_even(sums: list[int], num_parts: int, bound: int) -> list[int]:
    """Returns the ends of the K parts with the least sum of squares, no part above the bound.

    least[k][j], the least sum of squares of k parts that end at j, is the minimum over i of
    least[k - 1][i] + (sums[j] - sums[i])^2. The first of equal starts i is taken.
    """
    num_layers = len(sums) - 1
    # Below 2^26, squares and their sums are exact in float64. Larger costs are scaled down.
    scaled = np.array([cost / max(1, sums[-1] >> 25) for cost in sums])
    earliest = np.array([bisect_left(sums, cost - bound) for cost in sums])
    low = np.maximum(_nearest(sums, num_parts, bound), range(num_parts + 1))
    high = np.minimum(_farthest(sums, num_parts, bound), num_layers - np.arange(num_parts, -1, -1))

    least = np.zeros(1)  # for ends low[k] to high[k]
    starts_of: list[NDArray[np.int64]] = []
    for k in range(1, num_parts + 1):
        ends = np.arange(int(low[k]), int(high[k]) + 1)
        before = slice(low[k - 1], high[k - 1] + 1)
        starts = _best_starts(
            least,
            scaled[before],
            scaled[ends],
            np.maximum(earliest[ends], low[k - 1]) - low[k - 1],
            np.minimum(ends - 1, high[k - 1]) - low[k - 1],
        )
        least = least[starts] + (scaled[ends] - scaled[before][starts]) ** 2
        starts_of.append(starts + low[k - 1])

    boundaries = [num_layers]
    for k in range(num_parts, 1, -1):
        boundaries.append(int(starts_of[k - 1][boundaries[-1] - low[k]]))
    return boundaries[::-1]


def _best_starts(
    least: NDArray[np.float64],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Returns for each end j the first i that minimizes least[i] + (ends[j] - starts[i])^2.

    The best i does not decrease with j, since the cost is a square of a sum (the quadrangle
    inequality, Yao 1980). So it is found for every 2^p-th end first, then for the ends halfway
    between, trying only values between the best i of both neighbours: N log N values instead of
    N^2. Each i is in `low[j]`..`high[j]`, which ascend with j.
    """
    stride = 1 << len(ends).bit_length()
    best = np.full(stride + 1, len(starts) - 1)  # best[j + 1] is for end j; the edges are sentinels
    best[0] = 0
    while stride > 1:
        half = stride // 2
        rows = np.arange(half, len(ends) + 1, stride)
        left = np.maximum(low[rows - 1], best[rows - half])
        counts = np.minimum(high[rows - 1], best[rows + half]) - left + 1
        heads = np.cumsum(counts) - counts
        candidates = np.arange(int(counts.sum())) + np.repeat(left - heads, counts)
        values = least[candidates] + (np.repeat(ends[rows - 1], counts) - starts[candidates]) ** 2
        is_best = values == np.repeat(np.minimum.reduceat(values, heads), counts)
        (indices,) = np.nonzero(is_best)
        best[rows] = candidates[indices[np.searchsorted(indices, heads)]]
        stride = half
    return best[1 : len(ends) + 1]
