"""Schedules: the factor of the learning rate as a function of the step.

One definition of a schedule serves NumPy on the host (plots, tests, progress) and TensorFlow in the
program, in float32 both times. Steps count from 0: the first update is step 0.

    Warmup.params(num_steps=1000, then=Cosine.params(num_steps=9000, end=0.1))
    SequentialSchedule.params(parts=[(LinearRate.params(start=0.0, end=1.0), 100), (Cosine, 900)])
    ProductSchedule.params(schedules=[Warmup.params(num_steps=1000), InverseSqrt])
"""

from __future__ import annotations

import functools
import math
import operator
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import definition_line


class Schedule(Configurable, interface=True):
    """A factor of the learning rate. Subclasses define `factor`."""

    POSITIVE: ClassVar[tuple[str, ...]] = ()  # fields that must be above 0
    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = ()  # fields that must be 0 or above

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_positive(self.p, *self.POSITIVE)
        ranges.check_not_negative(self.p, *self.NOT_NEGATIVE)

    def __call__(self, step: Any) -> Any:
        """Returns the factor after a number of steps: integers of any shape, NumPy's or a tensor's.

        The result is float32 of the same shape; a tensor if `step` is one, else NumPy.
        """
        if isinstance(step, (int, np.integer, np.ndarray)):
            factor = self.factor(np.asarray(step).astype(np.float32), np)
            self._check_factor(factor, np.asarray(factor).dtype.kind in "fiu", np.shape(step))
            return np.float32(factor)
        factor = self.factor(tf.cast(step, tf.float32), tf)
        is_number = tf.is_tensor(factor) or np.asarray(factor).dtype.kind in "fiu"
        self._check_factor(factor, is_number, tuple(step.shape))
        return factor

    def _check_factor(self, factor: Any, is_number: bool, shape: tuple[int | None, ...]) -> None:
        """Raises ParamError unless a factor is a number, or one for each of several steps."""
        if not is_number or tuple(np.shape(factor)) not in ((), shape):
            where = f"{definition_line(type(self).factor)}: {type(self).__name__}.factor"
            raise ParamError(f"{where} returned {factor!r:.60}: a number for each step is wanted")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        """Returns the factor at a step, float32 of any shape, by functions of NumPy or TensorFlow.

        `xp` is one of them: both have minimum, maximum, where, abs, cos, exp, ones_like. A step is
        a whole number; `whole_periods` counts the periods before it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no factor")


def whole_periods(step: Any, length: int, xp: ModuleType) -> Any:
    """Returns how many periods of `length` steps have passed at a step, both float32.

    It divides integers: programs compute a quotient of floats as a product with the reciprocal,
    which is below the whole number at some boundaries.
    """
    if xp is np:
        return (step.astype(np.int32) // length).astype(np.float32)
    return tf.cast(tf.cast(step, tf.int32) // length, tf.float32)


class ConstantRate(Schedule):
    """The same factor at every step.

    >>> ConstantRate.params(value=0.5).build()(np.array([0, 9]))
    array([0.5, 0.5], dtype=float32)
    """

    value: float = 1.0  # the factor

    NOT_NEGATIVE = ("value",)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        return self.p.value * xp.ones_like(step)


class LinearRate(Schedule):
    """A straight line from `start` to `end` in `num_steps`, then constant.

    >>> LinearRate.params(num_steps=10).build()(np.array([0, 5, 20]))
    array([1. , 0.5, 0. ], dtype=float32)
    """

    num_steps: int  # steps from start to end
    start: float = 1.0  # factor at step 0
    end: float = 0.0  # factor at num_steps and later

    POSITIVE = ("num_steps",)
    NOT_NEGATIVE = ("start", "end")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        done = xp.minimum(step, float(self.p.num_steps)) / self.p.num_steps
        return self.p.start * (1.0 - done) + self.p.end * done


class Polynomial(Schedule):
    """Falls from `start` to `end` with a power of the fraction of steps left; LARS uses power 2.

    >>> Polynomial.params(num_steps=10).build()(np.array([0, 5, 20]))
    array([1.  , 0.25, 0.  ], dtype=float32)
    """

    num_steps: int  # steps from start to end
    power: float = 2.0  # 1: a straight line
    start: float = 1.0  # factor at step 0
    end: float = 0.0  # factor at num_steps and later

    POSITIVE = ("num_steps", "power")
    NOT_NEGATIVE = ("start", "end")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p, length = self.p, float(self.p.num_steps)
        left = (length - xp.minimum(step, length)) / length  # 1 - done would lose the last digits
        return p.end + (p.start - p.end) * left**p.power


class Cosine(Schedule):
    """Falls from 1 to `end` along half a cosine (Loshchilov & Hutter 2017, eq. 5; one cycle).

    >>> Cosine.params(num_steps=10).build()(np.array([0, 5, 20])).round(3)
    array([1. , 0.5, 0. ], dtype=float32)
    """

    num_steps: int  # steps from 1 to end
    end: float = 0.0  # factor at num_steps and later

    POSITIVE = ("num_steps",)
    NOT_NEGATIVE = ("end",)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        done = xp.minimum(step, float(self.p.num_steps)) / self.p.num_steps
        return self.p.end + (1.0 - self.p.end) * 0.5 * (1.0 + xp.cos(math.pi * done))


class Exponential(Schedule):
    """Multiplies the factor by `decay_rate` every `num_steps`, smoothly or all at once.

    >>> Exponential.params(num_steps=10, decay_rate=0.5).build()(np.array([0, 10, 20]))
    array([1.  , 0.5 , 0.25], dtype=float32)
    """

    num_steps: int  # steps in which the factor is multiplied by decay_rate once
    decay_rate: float  # what it is multiplied by
    staircase: bool = False  # all at once, at multiples of num_steps

    POSITIVE = ("num_steps", "decay_rate")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        times = whole_periods(step, p.num_steps, xp) if p.staircase else step / p.num_steps
        return p.decay_rate**times


class InverseSqrt(Schedule):
    """1 at first, then the inverse square root of the step (Raffel et al. 2020, sec. 3.1.2).

    The paper's rate 1 / sqrt(max(step, k)) is this schedule with `learning_rate` 1 / sqrt(k). Its
    product with a warm-up is `ProductSchedule.params(schedules=[Warmup, InverseSqrt])`.

    >>> InverseSqrt.params(hold_steps=100).build()(np.array([0, 100, 400]))
    array([1. , 1. , 0.5], dtype=float32)
    """

    hold_steps: int = 10_000  # steps at 1, the paper's k; at four times as many it is 1/2

    POSITIVE = ("hold_steps",)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        hold = float(self.p.hold_steps)
        return (hold / xp.maximum(step, hold)) ** 0.5


class Transformer(Schedule):
    """The schedule of the Transformer (Vaswani et al. 2017, eq. 3).

    It rises for `warmup_steps`, then falls with the inverse square root of the step. It is the
    learning rate itself, so `learning_rate` is usually 1; the paper counts steps from 1.

    >>> Transformer.params(model_dim=4, warmup_steps=4).build()(np.array([0, 3, 15]))
    array([0.0625, 0.25  , 0.125 ], dtype=float32)
    """

    model_dim: int  # width of the model
    warmup_steps: int = 4000  # steps of the rise

    POSITIVE = ("model_dim", "warmup_steps")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        step = step + 1.0
        scale = self.p.model_dim**-0.5
        return scale * xp.minimum(step**-0.5, step * self.p.warmup_steps**-1.5)


class Piecewise(Schedule):
    """Constant between boundaries; at a boundary it has the value before it, as in Keras.

    Piecewise.params(boundaries=[100, 200], values=[1.0, 0.1, 0.01])    # 0.1 from step 101 on

    >>> schedule = Piecewise.params(boundaries=[100, 200], values=[1.0, 0.1, 0.01]).build()
    >>> schedule(np.array([100, 101, 201]))
    array([1.  , 0.1 , 0.01], dtype=float32)
    """

    boundaries: tuple[int, ...]  # last steps of all values but the last, rising
    values: tuple[float, ...]  # the factors, one more than boundaries

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_not_negative(p, "boundaries", "values")
        if any(a >= b for a, b in pairwise(p.boundaries)):
            raise ParamError(f"boundaries={list(p.boundaries)} do not rise")
        if len(p.values) != len(p.boundaries) + 1:
            raise ParamError(
                f"{len(p.values)} values for {len(p.boundaries)} boundaries: there must be one more"
            )

    def factor(self, step: Any, xp: ModuleType) -> Any:
        first, *others = self.p.values
        value = first * xp.ones_like(step)
        for boundary, later in zip(self.p.boundaries, others, strict=True):
            value = xp.where(step <= boundary, value, later)
        return value


class Cyclic(Schedule):
    """Rises and falls between `low` and 1, cycle by cycle (Smith 2017, sec. 3.1).

    In the paper's terms, `learning_rate` is max_lr and `low` is base_lr / max_lr. The height above
    `low` stays the same (triangular), is halved in each cycle (triangular2), or is multiplied by
    `gamma` at each step (exp_range).

    >>> Cyclic.params(half_cycle_steps=10).build()(np.array([0, 5, 10, 20]))
    array([0.1 , 0.55, 1.  , 0.1 ], dtype=float32)
    """

    half_cycle_steps: int  # steps up, and as many down: the paper's stepsize
    low: float = 0.1  # factor at step 0 and between cycles
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"  # how peaks shrink
    gamma: float = 1.0  # of exp_range: what heights above low are multiplied by each step

    POSITIVE = ("half_cycle_steps", "gamma")
    NOT_NEGATIVE = ("low",)

    def check(self) -> None:
        super().check()
        if self.p.gamma > 1:
            raise ParamError(f"gamma={self.p.gamma} is above 1: the cycles would grow without end")
        if self.p.gamma != 1 and self.p.mode != "exp_range":
            raise ParamError(f"gamma={self.p.gamma} needs mode='exp_range', not {self.p.mode!r}")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p, half = self.p, self.p.half_cycle_steps
        cycle = whole_periods(step, 2 * half, xp)
        height = 1.0 - xp.abs((step - 2 * half * cycle) / half - 1.0)
        if p.mode == "triangular2":
            height = height * 0.5**cycle
        elif p.mode == "exp_range":
            height = height * p.gamma**step
        return p.low + (1.0 - p.low) * height


class Warmup(Schedule):
    """Rises linearly to the first factor of another schedule, then follows that schedule.

    The other schedule's step 0 is the end of the warm-up. With `start=0` the first update has a
    learning rate of 0, as in most published recipes.

    >>> then = Cosine.params(num_steps=10)
    >>> Warmup.params(num_steps=4, then=then).build()(np.array([0, 2, 4, 14]))
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    num_steps: int  # steps of the rise; 0: none
    start: float = 0.0  # height of step 0, as a part of what the rise ends at
    then: Schedule = ConstantRate  # what follows

    NOT_NEGATIVE = ("num_steps", "start")

    def setup(self) -> None:
        self.then = self.p.then.build()

    def factor(self, step: Any, xp: ModuleType) -> Any:
        length = max(self.p.num_steps, 1)
        rise = self.p.start + (1.0 - self.p.start) * step / length
        later = self.then.factor(xp.maximum(step - self.p.num_steps, 0.0), xp)
        return xp.where(step < self.p.num_steps, rise * later, later)


class EpochWarmup(Schedule):
    """Rises linearly to the first factor of another schedule in some epochs, then follows it.

    The rise may end between two steps. As in MLPerf's reference of ResNet-50 with LARS (training
    0.6), the other schedule's step 0 is the last step of the rise, and has the height of the rise.

    >>> then = Polynomial.params(num_steps=10)
    >>> params = EpochWarmup.params(epochs=2.5, examples_per_epoch=10, batch_size=10, then=then)
    >>> params.build()(np.array([0, 1, 2, 7]))
    array([0.  , 0.4 , 0.8 , 0.25], dtype=float32)
    """

    epochs: float  # length of the rise
    examples_per_epoch: int  # of the training data
    batch_size: int  # examples of a step
    then: Schedule = ConstantRate  # what follows

    POSITIVE = ("epochs", "examples_per_epoch", "batch_size")

    def setup(self) -> None:
        self.then = self.p.then.build()

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        length = p.epochs * p.examples_per_epoch / p.batch_size  # steps, not a whole number
        rise = xp.minimum(step / length, 1.0)
        later = self.then.factor(xp.maximum(step - math.floor(length), 0.0), xp)
        return xp.where(step <= math.floor(length), rise * later, later)


# ---- made of other schedules ---------------------------------------------------------------------


class SequentialSchedule(Schedule):
    """Runs schedules one after the other, each from its own step 0; the last one never ends.

    A schedule with a field `num_steps` that is not set inherits the length of its part.

    >>> parts = [(LinearRate.params(start=0.0, end=1.0), 10), (Cosine, 10)]
    >>> SequentialSchedule.params(parts=parts).build()(np.array([0, 5, 10, 15])).round(3)
    array([0. , 0.5, 1. , 0.5], dtype=float32)
    """

    parts: tuple[tuple[Schedule, int], ...]  # each schedule, and how many steps it lasts

    def check(self) -> None:
        super().check()
        if not self.p.parts:
            raise ParamError("parts is empty: give at least one schedule and its number of steps")
        for i, (_, num_steps) in enumerate(self.p.parts):
            if num_steps < 1:
                raise ParamError(f"parts[{i}] lasts {num_steps} steps, which is not positive")

    def setup(self) -> None:
        self.schedules = [schedule.build(num_steps=length) for schedule, length in self.p.parts]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        start, value = 0, None
        for schedule, (_, num_steps) in zip(self.schedules, self.p.parts, strict=True):
            factor = schedule.factor(xp.maximum(step - start, 0.0), xp)
            value = factor if value is None else xp.where(step < start, value, factor)
            start += num_steps
        return value


class ProductSchedule(Schedule):
    """Multiplies schedules, all from the same step 0.

    >>> schedules = [Warmup.params(num_steps=10), InverseSqrt.params(hold_steps=10)]
    >>> ProductSchedule.params(schedules=schedules).build()(np.array([0, 5, 40]))
    array([0. , 0.5, 0.5], dtype=float32)
    """

    schedules: tuple[Schedule, ...]  # the factors

    def check(self) -> None:
        super().check()
        if not self.p.schedules:
            raise ParamError("schedules is empty: give at least one")

    def setup(self) -> None:
        self.schedules = tuple(schedule.build() for schedule in self.p.schedules)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        factors = [schedule.factor(step, xp) for schedule in self.schedules]
        return functools.reduce(operator.mul, factors)


class WarmupStableDecay(Schedule):
    """Rises to 1, stays at 1 for most of a run, then falls (Hu et al. 2024, sec. 4.2).

    A run may continue from any checkpoint of the stable part, whose length need not be known
    beforehand. The fall is any schedule that starts at 1; the paper uses `Exponential`.

    >>> schedule = WarmupStableDecay.params(warmup_steps=4, stable_steps=8, decay_steps=4)
    >>> schedule.build()(np.array([0, 2, 4, 12, 14]))
    array([0. , 0.5, 1. , 1. , 0.5], dtype=float32)
    """

    warmup_steps: int  # steps of the rise from 0; 0: none
    stable_steps: int  # steps at 1
    decay_steps: int  # steps of the fall
    decay: Schedule = LinearRate  # the fall; inherits decay_steps as its num_steps

    POSITIVE = ("decay_steps",)
    NOT_NEGATIVE = ("warmup_steps", "stable_steps")

    def setup(self) -> None:
        self.decay = self.p.decay.build(num_steps=self.p.decay_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        fall = self.decay.factor(xp.maximum(step - (p.warmup_steps + p.stable_steps), 0.0), xp)
        return xp.where(step < p.warmup_steps, step / max(p.warmup_steps, 1), fall)
