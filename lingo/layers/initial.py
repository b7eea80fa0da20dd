"""Initial values, drawn on the host: the same bits on every machine, any slice without the rest.

A weight's numbers depend on (seed, name of the weight, element) alone. Every step is integer
arithmetic or an IEEE float64 operation that rounds the same everywhere; no logarithm or cosine,
whose last bit differs between processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable
from lingo.ops import random


class Initializer(Configurable, kind=True):
    """The distribution of a weight's initial values."""

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, rows: slice = slice(None)
    ) -> np.ndarray:
        """Returns initial values.

        Args:
            key: host key of the seed and the weight's name.
            shape: of the whole weight.
            fan_in: number of inputs that each output adds up.
            rows: which part of the first axis is wanted.

        Returns:
            float32 [len(rows), *shape[1:]]; for a scalar weight, [].
        """
        raise NotImplementedError


class Constant(Initializer):
    """Every element the same."""

    value: float = 0.0

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, rows: slice = slice(None)
    ) -> np.ndarray:
        del key, fan_in
        return np.full(_part(shape, rows)[0], self.p.value, np.float32)


class Uniform(Initializer):
    """Uniform in [-limit, limit)."""

    limit: float  # half the width of the interval

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, rows: slice = slice(None)
    ) -> np.ndarray:
        del fan_in
        shape, start = _part(shape, rows)
        return (self.p.limit * _symmetric(key, start, shape)).astype(np.float32)


class TruncatedNormal(Initializer):
    """A normal distribution cut at two standard deviations, widened to the `stddev` asked for."""

    stddev: float = 0.02  # of the values drawn

    def check(self) -> None:
        ranges.check_not_negative(self.p, "stddev")

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, rows: slice = slice(None)
    ) -> np.ndarray:
        del fan_in
        return _truncated(key, shape, rows, self.p.stddev)


class FanIn(Initializer):
    """Truncated normal of variance scale / fan_in: keeps the size of inputs (LeCun et al. 1998)."""

    scale: float = 1.0  # variance of an output over that of an input

    def check(self) -> None:
        ranges.check_not_negative(self.p, "scale")

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, rows: slice = slice(None)
    ) -> np.ndarray:
        return _truncated(key, shape, rows, math.sqrt(self.p.scale / fan_in))


ZEROS = Constant.params().build()
ONES = Constant.params(value=1.0).build()
FAN_IN = FanIn.params().build()

_STDDEV_OF_CUT = 0.8796256610342398  # of a unit normal cut at 2


def _part(shape: Sequence[int], rows: slice) -> tuple[list[int], int]:
    """Returns the shape of a slice of the first axis, and the counter of its first element."""
    if not shape:
        return [], 0
    start, stop, _ = rows.indices(shape[0])
    return [stop - start, *shape[1:]], start * math.prod(shape[1:])


def _symmetric(key: random.Key, start: int, shape: Sequence[int]) -> np.ndarray:
    """Returns float64 values in (-1, 1), odd multiples of 2**-32."""
    words = random.host_bits(key, start, math.prod(shape)).reshape(shape)
    return (words.astype(np.float64) + 0.5) * 2.0**-31 - 1.0


def _truncated(key: random.Key, shape: Sequence[int], rows: slice, stddev: float) -> np.ndarray:
    shape, start = _part(shape, rows)
    return (stddev / _STDDEV_OF_CUT * cut_normal(_symmetric(key, start, shape))).astype(np.float32)


# cut_normal(u) = u P(u^2) / Q(u^2), a least-squares fit whose error is below 5e-9 on [-1, 1]
_P = (
    1.196288015105263,
    -3.3520687461877516,
    3.4677376000866635,
    -1.5880732372979605,
    0.29277908563878674,
    -0.012199080477924075,
)
_Q = (
    1.0,
    -3.040575656588433,
    3.5045061046329287,
    -1.8739699906967013,
    0.44704563850854145,
    -0.03477427741946249,
)


def cut_normal(u: np.ndarray) -> np.ndarray:
    """Returns the quantiles of a unit normal cut at -2 and 2.

    Args:
        u: float64 in [-1, 1]: twice the probability of a smaller value, minus one.

    Returns:
        float64 in [-2, 2], same shape.
    """
    square = u * u
    top, bottom = np.full_like(u, _P[-1]), np.full_like(u, _Q[-1])
    for p, q in zip(_P[-2::-1], _Q[-2::-1], strict=True):
        top = top * square + p
        bottom = bottom * square + q
    return u * (top / bottom)
