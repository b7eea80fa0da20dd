"""Initial values of weights, drawn in NumPy with the same bits on every machine.

An element depends only on the seed, the name of its weight and the element's index, so any slice
can be drawn alone. All arithmetic is integer, or IEEE float64 operations that round the same way on
every processor. No logarithm or cosine is used, since their last bit differs between processors.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.layers import path
from lingo.ops import normal, random


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
        return self.p.stddev / normal.STDDEV_OF_CUT * normal.cut_normal(u)


class Normal(Initializer):
    """A normal distribution."""

    stddev: float = 0.05  # standard deviation of the values

    def check(self) -> None:
        ranges.check_not_negative(self.p, "stddev")

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        return self.p.stddev * normal.normal(u)


class FanIn(Initializer):
    """A truncated normal distribution with variance scale / fan_in (LeCun et al. 1998).

    With a scale of 1, a linear layer's outputs have the variance of its inputs.
    """

    scale: float = 1.0  # variance of an output / variance of an input

    def check(self) -> None:
        ranges.check_not_negative(self.p, "scale")

    def values(self, u: np.ndarray, fan_in: int) -> np.ndarray:
        return math.sqrt(self.p.scale / fan_in) / normal.STDDEV_OF_CUT * normal.cut_normal(u)


class He(FanIn):
    """A truncated normal distribution with variance 2 / fan_in (He et al. 2015).

    A layer's outputs have the variance of its inputs if these went through a ReLU.
    """

    scale: float = 2.0  # variance of an output / variance of an input


class Glorot(Initializer):
    """A distribution with variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010, eq. 16).

    As Keras's `GlorotUniform` and `GlorotNormal`: uniform, or a truncated normal distribution.
    """

    distribution: Literal["uniform", "normal"] = "uniform"  # normal: cut at two deviations
    fan_out: int | None = None  # outputs that read an input; None: the weight's size / its fan-in

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        u = _symmetric(key, shape, index)
        fan_out = self.p.fan_out or math.prod(shape) // fan_in
        stddev = math.sqrt(2.0 / (fan_in + fan_out))
        if self.p.distribution == "uniform":
            return (math.sqrt(3.0) * stddev * u).astype(np.float32)
        return (stddev / normal.STDDEV_OF_CUT * normal.cut_normal(u)).astype(np.float32)


class Orthogonal(Initializer):
    """A random matrix with orthogonal columns, or rows if it has more columns (Saxe et al. 2014).

    The weight is a matrix of fan_in rows, or columns if its last axes are the inputs. All of it is
    computed, also for a slice, one column after the other: a matrix of 1,024 x 1,024 takes seconds.
    """

    gain: float = 1.0  # length of the columns

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        sizes = (fan_in, -1)
        if fan_in not in itertools.accumulate(
            shape, operator.mul
        ):  # of the last axes, as a table's
            sizes = (-1, fan_in)
        x = normal.normal(_symmetric(key, shape, ())).reshape(sizes)
        is_wide = x.shape[0] < x.shape[1]
        y = _orthogonalize(x.T if is_wide else x)
        w = self.p.gain * (y.T if is_wide else y)
        return w.reshape(shape)[tuple(index)].astype(np.float32)


class Identity(Initializer):
    """The identity: ones on the diagonal of a matrix, and zeros."""

    gain: float = 1.0  # the number on the diagonal

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        """Returns a slice of the matrix; raises ParamError unless `shape` has two axes."""
        if len(shape) != 2:
            raise ParamError(f"Identity is for matrices, and a weight has the shape {[*shape]}")
        w: np.ndarray = self.p.gain * np.eye(shape[0], shape[1], dtype=np.float32)
        return w[tuple(index)]


ZEROS = Constant.params().build()
ONES = Constant.params(value=1.0).build()
FAN_IN = FanIn.params().build()


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


def _orthogonalize(x: np.ndarray) -> np.ndarray:
    """Returns float64 [R, C] with orthonormal columns, R >= C: modified Gram-Schmidt process.

    `np.add.reduce` along the first axis adds row after row: BLAS and LAPACK round differently from
    machine to machine.
    """
    x = x.copy()
    for i in range(x.shape[1]):
        column, later = x[:, i : i + 1], x[:, i + 1 :]
        column /= np.sqrt(np.add.reduce(column * column, axis=0))
        later -= column * np.add.reduce(column * later, axis=0)
    return x
