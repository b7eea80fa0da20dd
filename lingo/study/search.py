"""Which points of the space a sweep tries: all, or some drawn at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeAlias

from lingo.config.params import ParamError
from lingo.study.space import Axis, Span

MAX_TRIALS = 10_000
_DRAWS = 20  # a point found: so many in a row that give nothing new mean that no other is left

Point: TypeAlias = dict[str, str]
"""The target of each axis -> the value, as it would be typed."""


class Search(Protocol):
    """Says which points are tried. Points are asked for in order and never change."""

    @property
    def num_trials(self) -> int:
        """How many points are tried."""
        ...

    @property
    def num_known(self) -> int:
        """How many of them are known now, whatever the others find."""
        ...

    def point(self, number: int) -> Point:
        """Returns the point of a trial, 0 <= number < num_trials."""
        ...

    def learn(self, number: int, value: float | None) -> None:
        """Takes note of what a trial found; None if it found no finite number."""
        ...


class Listed:
    """Points that are all known from the start."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    @property
    def num_trials(self) -> int:
        """How many points there are."""
        return len(self._points)

    @property
    def num_known(self) -> int:
        """All of them."""
        return len(self._points)

    def point(self, number: int) -> Point:
        """Returns the point of a trial: the trials follow the list."""
        return self._points[number]

    def learn(self, number: int, value: float | None) -> None:
        """What is found changes nothing."""


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Returns every combination, the last axis changing fastest.

    Raises:
        ParamError: for an axis that is no list, or too many points.
    """
    for axis in axes:
        if isinstance(axis, Span):
            raise ParamError(
                f"{axis}: a grid needs values, as in {axis.target}={','.join(axis.samples)};"
                " a range is for --search=random or optuna"
            )
    check_size(math.prod(len(axis.samples) for axis in axes))
    targets = [axis.target for axis in axes]
    combinations = itertools.product(*(axis.samples for axis in axes))
    return [dict(zip(targets, values, strict=True)) for values in combinations]


def random(axes: Sequence[Axis], *, num_trials: int, seed: int) -> list[Point]:
    """Returns different points, drawn at random (Bergstra and Bengio 2012).

    A value is a function of the seed, the axis' target and the number of the draw. So more trials
    begin with the same points, and another axis leaves the values of these.

    Raises:
        ParamError: if the space has too few points, or there are too many.
    """
    check_size(num_trials)
    found: dict[tuple[str, ...], Point] = {}
    in_vain = 0
    for number in itertools.count():
        if len(found) == num_trials:
            return list(found.values())
        point = {a.target: a.draw(Random(f"{seed} {number} {a.target}").random()) for a in axes}
        in_vain = in_vain + 1 if tuple(point.values()) in found else 0
        found.setdefault(tuple(point.values()), point)
        if in_vain > _DRAWS * len(found):
            break
    raise ParamError(
        f"there are not {num_trials} different trials to draw: {len(found)} were found."
        f" Lower --num_trials to {len(found)}, or sweep all by --search=grid."
    )


def corners(axes: Sequence[Axis]) -> list[Point]:
    """Returns points in which each value of a list and each end of a range occurs."""
    first = {axis.target: axis.samples[0] for axis in axes}
    varied = [first | {axis.target: v} for axis in axes for v in axis.samples[1:]]
    return [first, *varied]


def check_size(num_trials: int) -> None:
    """Refuses a number of trials that is a mistake.

    Raises:
        ParamError: if there are more than `MAX_TRIALS`.
    """
    if num_trials > MAX_TRIALS:
        raise ParamError(f"{num_trials:,} trials are too many; a sweep has at most {MAX_TRIALS:,}")
