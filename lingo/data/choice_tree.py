"""A tree of choices: which of K parts each example of an endless mixture comes from.

A node of the tree sends each example that reaches it to its left or its right side. Of the first n
examples that reach a node whose left side has share p, floor(n p + 1/2) go left. If shares change,
n p becomes the sum of the shares so far, F(n), a line with a bend at the end of each stretch. So
example n is found without the examples before it, and each part's examples come in order, without
gaps. A part's count is off its expectation by at most half an example per level of the tree; if
shares change, by half an example at the root, and by one per level below.

    counts of a node at the ends of stretches    integers, computed once, from the root down
    slope of F in a stretch                      what reaches the expectation at the stretch's end

Axes: N examples, K parts, J stretches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

_ONE = 1 << 32  # shares are multiples of 1 / _ONE
_NUM_STEPS = 64  # stretches between two numbers of examples at which shares are given


class Choice(NamedTuple):
    """Where N examples of a mixture come from."""

    part: np.ndarray  # int64 [N], index of each example's part
    number: np.ndarray  # int64 [N], the example's number in that part


class Stretch(NamedTuple):
    """Consecutive examples of a mixture with constant shares; the last stretch never ends."""

    begin: int  # number of examples before
    shares: tuple[float, ...]  # share of each part; they may have any sum


def constant_shares(weights: Sequence[float]) -> list[Stretch]:
    """Returns one stretch that never ends, with shares proportional to `weights`, [K]."""
    return [Stretch(0, tuple(weights))]


def stretches(
    points: Mapping[int, Sequence[float]], *, curve: Literal["linear", "exponential"]
) -> list[Stretch]:
    """Returns the stretches of shares that change from each of some numbers to the next.

    `points` has the weights, [K], at numbers of examples, in rising order from 0; they are
    divided by their sum. Between two points there are up to 64 stretches, each with the shares of
    its middle, on a straight line between the points' shares, or on an exponential.
    """
    numbers = list(points)
    shares = [np.array(points[number], np.float64) for number in numbers]
    shares = [weights / weights.sum() for weights in shares]
    found = []
    for i in range(len(numbers) - 1):
        length = numbers[i + 1] - numbers[i]
        num = min(_NUM_STEPS, length)
        for j in range(num):
            done = (j + 0.5) / num
            if curve == "linear":
                now = (1.0 - done) * shares[i] + done * shares[i + 1]
            else:
                now = shares[i] ** (1.0 - done) * shares[i + 1] ** done
            begin = numbers[i] + j * length // num
            found.append(Stretch(begin, tuple((now / now.sum()).tolist())))
    return [*found, Stretch(numbers[-1], tuple(shares[-1].tolist()))]


class ChoiceTree:
    """The tree of a mixture with shares that change from stretch to stretch."""

    def __init__(self, shares: Sequence[Stretch]) -> None:
        """Computes the counts at the ends of stretches; the first stretch begins at 0."""
        begins = [stretch.begin for stretch in shares]
        sums = [[Fraction(0)] * len(shares[0].shares)]  # expected examples of parts, by stretch
        for stretch, (begin, end) in zip(shares, itertools.pairwise(begins), strict=False):
            own = [Fraction(share) for share in stretch.shares]
            unit = (end - begin) / sum(own, Fraction(0))
            sums.append(
                [before + unit * share for before, share in zip(sums[-1], own, strict=True)]
            )
        parts = [[row[k] for row in sums] for k in range(len(sums[0]))]
        self._root = _Node(begins, parts, shares[-1].shares, first=0)

    def choose(self, numbers: np.ndarray) -> Choice:
        """Returns the parts that examples come from, by their numbers in the mixture, int64 [N]."""
        part, number = np.zeros_like(numbers), numbers.copy()
        self._root.descend(part, number, np.arange(len(numbers)))
        return Choice(part, number)


class _Node:
    """A node for some neighbouring parts."""

    def __init__(
        self,
        begins: Sequence[int],
        expected: Sequence[Sequence[Fraction]],
        last: Sequence[float],
        *,
        first: int,
    ) -> None:
        """Takes numbers for each stretch, in order, and the index of the first part.

        `begins`, [J], are the examples that reach the node before each stretch; `expected`, [K, J],
        are the parts' expected examples before each stretch, and `last`, [K], their shares in the
        last one.
        """
        self._first, self._sides = first, list[_Node]()
        if len(last) == 1:
            return
        half, line = len(last) // 2, 0  # line: F before the stretch, in units of 1 / _ONE
        goals = [sum(column) for column in zip(*expected[:half], strict=True)]
        rests = [sum(column) for column in zip(*expected[half:], strict=True)]
        lines, slopes = list[int](), list[int]()
        for j, length in enumerate(np.diff(begins).tolist()):
            if goals[j + 1] == goals[j]:  # a side without a share gets no example
                slope = 0
            elif rests[j + 1] == rests[j]:
                slope = _ONE
            else:
                off = round(_ONE * goals[j + 1]) - line
                slope = min(max(0, round(off / length)), _ONE) if length else 0
            lines.append(line)
            slopes.append(slope)
            line += length * slope
        share = sum(last[:half]) / sum(last) if sum(last) else 0.0
        lines.append(line)
        slopes.append(round(share * _ONE))
        self._begins = np.array(begins, np.int64)
        self._whole = np.array([line // _ONE for line in lines], np.int64)
        self._rest = np.array([line % _ONE for line in lines], np.uint64)
        self._slopes = np.array(slopes, np.uint64)
        left = [(line + _ONE // 2) // _ONE for line in lines]
        right = [all - own for all, own in zip(begins, left, strict=True)]
        self._sides = [
            _Node(left, expected[:half], last[:half], first=first),
            _Node(right, expected[half:], last[half:], first=first + half),
        ]

    def descend(self, part: np.ndarray, number: np.ndarray, here: np.ndarray) -> None:
        """Chooses a part for each example at `here`, in place."""
        if not self._sides:
            part[here] = self._first
            return
        before, after = self._count_left(number[here]), self._count_left(number[here] + 1)
        is_left = after > before
        number[here] = np.where(is_left, before, number[here] - before)
        for side, chosen in zip(self._sides, (is_left, ~is_left), strict=True):
            side.descend(part, number, here[chosen])

    def _count_left(self, count: np.ndarray) -> np.ndarray:
        """Returns floor(F(count) + 1/2), int64 [N]; exact, though products have 96 bits."""
        stretch = np.searchsorted(self._begins, count, side="right") - 1
        slope = self._slopes[stretch]
        high, low = np.divmod(count - self._begins[stretch], _ONE)
        product = low.astype(np.uint64) * slope
        rest = (product & np.uint64(_ONE - 1)) + self._rest[stretch] + np.uint64(_ONE // 2)
        added = (product >> np.uint64(32)) + (rest >> np.uint64(32))
        return self._whole[stretch] + high * slope.astype(np.int64) + added.astype(np.int64)
