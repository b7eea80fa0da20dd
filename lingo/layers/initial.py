"""Initial values of weights, drawn in NumPy with the same bits on every machine.

An element depends only on the seed, the name of its weight and the element's index, so any slice
can be drawn alone. All arithmetic is integer, or IEEE float64 operations that round the same way on
every processor. No logarithm or cosine is used, since their last bit differs between processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.layers import path
from lingo.ops import random


class InitialValue(Protocol):
    """Draws the initial value of a weight.

    `Initializer` has this interface, and so do private classes of layers with special values.
    """

    def key(self, root: random.Key, name: str) -> random.Key:
        """Returns the key for `draw`, from the seed's key `root` and the name of a weight."""
        ...

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        """Returns the initial values of a weight or of a slice of it; see `Initializer.draw`."""
        ...


class Initializer(Configurable, interface=True):
    """The distribution of a weight's initial values.

    A subclass defines `values`, or `draw` if it needs the shape of the weight.
    """

    def key(self, root: random.Key, name: str) -> random.Key:
        """Returns a key that depends on the name, so that no two weights draw the same values."""
        return path.key(root, name)

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        """Returns the initial values of a weight of shape `shape`, or of a slice of it, float32.

        `index` has slices of step 1 for the first axes; () is the whole weight. `fan_in` is the
        number of inputs that each output of the layer sums.
        """
        u = _symmetric(key, shape, index)
        values = self.values(u, fan_in)
        if not is_lingos(type(self)):
            self._check_values(u, fan_in, values)
        return values.astype(np.float32)

    def _check_values(self, u: np.ndarray, fan_in: int, values: Any) -> None:
        """Checks that `values` are finite, have the shape of `u`, and depend on `u` alone.

        Raises ParamError otherwise.
        """
        where = f"{definition_line(type(self).values)}: {type(self).__name__}.values"
        is_numbers = isinstance(values, np.ndarray) and values.dtype.kind in "fiu"
        if not is_numbers or values.shape != u.shape:
            raise ParamError(
                f"{where} returned {np.shape(values)} {type(values).__name__}: it has to return an"
                f" array with a number for each element of u, {u.shape}"
            )
        if not np.isfinite(values).all():
            raise ParamError(f"{where} returned values that are not finite")
        if not np.array_equal(values, self.values(u, fan_in)):
            raise ParamError(
                f"{where} returned other values when it was called again: compute them from u"
                " alone, so that every process has the same"
            )

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        """Maps uniform random numbers in (-1, 1) to values of the distribution, element by element.

        `u` and the result are float64, of any shape.
        """
        raise NotImplementedError


class Constant(Initializer):
    """Gives every element the same value."""

    value: float = 0.0

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        sizes = [len(indices) for indices in _ranges(shape, index)]
        return np.full(sizes, self.p.value, np.float32)


class Uniform(Initializer):
    """The uniform distribution in [-limit, limit)."""

    limit: float  # half the width of the interval

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        return self.p.limit * u


class TruncatedNormal(Initializer):
    """A normal distribution cut at two standard deviations, then scaled to the given `stddev`."""

    stddev: float = 0.02  # standard deviation of the values, after the cut

    def check(self) -> None:
        ranges.check_not_negative(self.p, "stddev")

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        return self.p.stddev / _STDDEV_OF_CUT * cut_normal(u)


class FanIn(Initializer):
    """A truncated normal distribution with variance scale / fan_in (LeCun et al. 1998).

    With a scale of 1, a linear layer's outputs have the variance of its inputs.
    """

    scale: float = 1.0  # variance of an output / variance of an input

    def check(self) -> None:
        ranges.check_not_negative(self.p, "scale")

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        return math.sqrt(self.p.scale / fan_in) / _STDDEV_OF_CUT * cut_normal(u)


ZEROS = Constant.params().build()
ONES = Constant.params(value=1.0).build()
FAN_IN = FanIn.params().build()

_STDDEV_OF_CUT = 0.8796256610342398  # standard deviation of a unit normal cut at -2 and 2


def _ranges(shape: Sequence[int], index: Sequence[slice]) -> list[range]:
    slices = [*index, *[slice(None)] * (len(shape) - len(index))]
    return [range(*part.indices(size)) for part, size in zip(slices, shape, strict=True)]


def _symmetric(key: random.Key, shape: Sequence[int], index: Sequence[slice]) -> np.ndarray:
    """Returns uniform random float64 values in (-1, 1) for a slice of a tensor of shape `shape`.

    The values are odd multiples of 2**-32.
    """
    numbers = np.zeros((), np.uint64)
    for size, indices in zip(shape, _ranges(shape, index), strict=True):
        digits = np.arange(indices.start, indices.stop, dtype=np.uint64)
        numbers = numbers[..., None] * np.uint64(size) + digits
    words = random.host_words(key, numbers.ravel()).reshape(numbers.shape)
    return (words.astype(np.float64) + 0.5) * 2.0**-31 - 1.0


# coefficients of cut_normal(u) = u P(u^2) / Q(u^2), a least-squares fit; its error is below 5e-9
# on [-1, 1]
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
    """Returns quantiles of a unit normal distribution cut at -2 and 2.

    The quantile for a probability P is at u = 2 P - 1. `u` is float64, of any shape.
    """
    square = u * u
    top, bottom = np.full_like(u, _P[-1]), np.full_like(u, _Q[-1])
    for p, q in zip(_P[-2::-1], _Q[-2::-1], strict=True):
        top = top * square + p
        bottom = bottom * square + q
    return u * (top / bottom)
