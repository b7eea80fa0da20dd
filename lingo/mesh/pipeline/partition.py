"""Splits layers of different costs optimally into the stages of a pipeline.

The cost of the largest part is minimal, since the slowest stage limits the pipeline. Among the
splits with that cost, the variance of the parts is minimal. GPipe minimizes only the variance
(Huang et al. 2019, sec. 2.2). Mostly both agree, but 1, 5, 2, 3 in three parts would be
1 + 5 | 2 | 3, whose slowest stage takes 6.

Axes: n layers, K parts, I candidate starts and J candidate ends of a part.

    partition([10, 1, 1, 1], 2)  # (range(0, 1), range(1, 4))
    partition([1] * 8, 4)        # two each
    partition([1, 5, 2, 3], 3)   # 1 | 5 | 2 + 3
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError


def partition(costs: Sequence[float], num_parts: int) -> tuple[range, ...]:
    """Returns `num_parts` runs of layers, at most n, none empty, that split all of them in order.

    `costs` are [n] numbers such as FLOPs or seconds. The largest sum of a part is minimal exactly,
    for floats, too; then the sum of squares of the parts' sums is, up to rounding in float64.
    Raises ParamError if a cost is negative or not finite.
    """
    for layer, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise ParamError(f"layer {layer} costs {cost}; a cost is a number from 0 on")
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
    """Returns the most layers of the first 0, 1, ..., K parts, if no part exceeds the bound."""
    ends = [0]
    for _ in range(num_parts):
        ends.append(bisect_right(sums, sums[ends[-1]] + bound) - 1)
    return ends


def _nearest(sums: list[int], num_parts: int, bound: int) -> list[int]:
    """Returns the fewest layers of the first 0, 1, ..., K parts, if no part exceeds the bound."""
    starts = [len(sums) - 1]
    for _ in range(num_parts):
        starts.append(bisect_left(sums, sums[starts[-1]] - bound))
    return starts[::-1]


def _most_even(sums: list[int], num_parts: int, bound: int) -> list[int]:
    """Returns the ends of the K parts with the least sum of squares, none above the bound.

    least[k][j], the least sum of squares of k parts that end at j, is the minimum over i of
    least[k - 1][i] + (sums[j] - sums[i])^2. The first of equal starts i is taken.
    """
    num_layers = len(sums) - 1
    # Below 2^26, squares and their sums are exact in float64. Larger costs are scaled down.
    scaled = np.array([cost / max(1, sums[-1] >> 25) for cost in sums])
    earliest = np.array([bisect_left(sums, cost - bound) for cost in sums])
    low = np.maximum(_nearest(sums, num_parts, bound), range(num_parts + 1))
    high = np.minimum(_farthest(sums, num_parts, bound), num_layers - np.arange(num_parts, -1, -1))

    least = np.zeros(1)  # of ends low[k] to high[k]
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
    N^2. An i is from `low` to `high`, which ascend with j.
    """
    stride = 1 << len(ends).bit_length()
    best = np.full(stride + 1, len(starts) - 1)  # best[j + 1] is of end j; the edges are sentinels
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
