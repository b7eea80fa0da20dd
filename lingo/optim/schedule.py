"""Schedules: the factor of the learning rate as a function of the step.

One definition of a schedule serves NumPy (plots, tests, progress) and TensorFlow in the program,
both in float32. Steps count from 0: the first update is step 0.

    Cosine.params(num_steps=9000, end=0.1)
    Cosine                                      # as long as the run
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.config.roots.user_line import definition_line
from lingo.optim.run_length import RunLength


class Schedule(Configurable, interface=True):
    """A factor of the learning rate. Subclasses define `factor`.

    A schedule whose number of steps is left out ends with the run, so it depends on the run's
    `max_steps`.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ()  # fields that are numbers of steps; None: the run's
    POSITIVE: ClassVar[tuple[str, ...]] = ()  # fields that must be above 0
    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = ()  # fields that must be 0 or above

    _run: RunLength | None = None  # None: no run
    _start: int = 0  # step of the run that is this schedule's step 0

    def check(self) -> None:
        ranges.check_finite(self.p)
        ranges.check_positive(self.p, *self.POSITIVE)
        ranges.check_not_negative(self.p, *self.NOT_NEGATIVE)

    def inner(self) -> list[tuple[int, Schedule]]:
        """Returns the schedules inside this one, each with the step at which it begins."""
        return []

    def end_with(self, run: RunLength, *, start: int = 0) -> None:
        """Sets the run, and this schedule's first step in it, here and in the schedules inside.

        The length of the run is read when a factor needs it: it may depend on the data.
        """
        self._run, self._start = run, start
        for first, schedule in self.inner():
            schedule.end_with(run, start=start + first)

    def counts_epochs(self) -> bool:
        """Returns whether steps per epoch matter, here or in a schedule inside."""
        return any(schedule.counts_epochs() for _, schedule in self.inner())

    def ends_with_run(self) -> bool:
        """Returns whether a number of steps is left out, here or in a schedule inside."""
        own = any(getattr(self.p, name) is None for name in self.OPTIONAL)
        return own or any(schedule.ends_with_run() for _, schedule in self.inner())

    def _num_steps(self, name: str) -> float:
        """Returns a field of `OPTIONAL`, or the length of the run if the field is left out."""
        if (given := getattr(self.p, name)) is not None:
            return given
        if self._run is None:
            raise ParamError(
                f"{type(self).__name__}: {name} is left out, and there is no run: set it"
            )
        left = self._run.steps - self._start  # less than 1 if steps are epochs (`InEpochs`)
        return left if left > 0 else 1

    def __call__(self, step: Any) -> Any:
        """Returns the factor after a number of steps, float32 with the shape of `step`.

        `step` has integers of any shape. The factor is a tensor if `step` is one, else NumPy's.
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
        """Raises ParamError unless a factor is a number, or has a number for each step."""
        if not is_number or tuple(np.shape(factor)) not in ((), shape):
            where = f"{definition_line(type(self).factor)}: {type(self).__name__}.factor"
            raise ParamError(f"{where} returned {factor!r:.60}: it returns a number for each step")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        """Returns the factor at a step, float32 of any shape, by functions of NumPy or TensorFlow.

        `xp` is the module, NumPy or TensorFlow. Both have minimum, maximum, where, abs, cos, exp,
        ones_like. A step is a whole number; `whole_periods` counts the periods before it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no factor")


def whole_periods(step: Any, length: int, xp: ModuleType) -> Any:
    """Returns how many periods of `length` steps have passed at a step; both are float32.

    It divides integers, because programs divide floats by multiplying with the reciprocal, and the
    product is below the whole number at some boundaries.
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

    num_steps: int | None = None  # steps from start to end; None: the length of the run
    start: float = 1.0  # factor at step 0
    end: float = 0.0  # factor at num_steps and later

    OPTIONAL = ("num_steps",)
    POSITIVE = ("num_steps",)
    NOT_NEGATIVE = ("start", "end")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        num_steps = self._num_steps("num_steps")
        done = xp.minimum(step, float(num_steps)) / num_steps
        return self.p.start * (1.0 - done) + self.p.end * done


class Polynomial(Schedule):
    """Falls from `start` to `end` with a power of the fraction of steps left; LARS uses power 2.

    >>> Polynomial.params(num_steps=10).build()(np.array([0, 5, 20]))
    array([1.  , 0.25, 0.  ], dtype=float32)
    """

    num_steps: int | None = None  # steps from start to end; None: the length of the run
    power: float = 2.0  # 1: a straight line
    start: float = 1.0  # factor at step 0
    end: float = 0.0  # factor at num_steps and later

    OPTIONAL = ("num_steps",)
    POSITIVE = ("num_steps", "power")
    NOT_NEGATIVE = ("start", "end")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p, length = self.p, float(self._num_steps("num_steps"))
        left = (length - xp.minimum(step, length)) / length  # 1 - done would lose the last digits
        return p.end + (p.start - p.end) * left**p.power


class Cosine(Schedule):
    """Falls from 1 to `end` along half a cosine (Loshchilov & Hutter 2017, eq. 5; one cycle).

    >>> Cosine.params(num_steps=10).build()(np.array([0, 5, 20])).round(3)
    array([1. , 0.5, 0. ], dtype=float32)
    """

    num_steps: int | None = None  # steps from 1 to end; None: the length of the run
    end: float = 0.0  # factor at num_steps and later

    OPTIONAL = ("num_steps",)
    POSITIVE = ("num_steps",)
    NOT_NEGATIVE = ("end",)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        num_steps = self._num_steps("num_steps")
        done = xp.minimum(step, float(num_steps)) / num_steps
        return self.p.end + (1.0 - self.p.end) * 0.5 * (1.0 + xp.cos(math.pi * done))


class Exponential(Schedule):
    """Multiplies the factor by `decay_rate` every `num_steps`, smoothly or all at once.

    >>> Exponential.params(num_steps=10, decay_rate=0.5).build()(np.array([0, 10, 20]))
    array([1.  , 0.5 , 0.25], dtype=float32)
    """

    num_steps: float  # steps per multiplication by decay_rate; may have a fraction
    decay_rate: float  # the multiplier
    staircase: bool = False  # all at once, at the first step at or after a multiple of num_steps

    POSITIVE = ("num_steps", "decay_rate")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        times = step / p.num_steps
        if p.staircase and float(p.num_steps).is_integer():
            times = whole_periods(step, int(p.num_steps), xp)
        elif p.staircase:
            times = xp.floor(times)
        return p.decay_rate**times


class InverseSqrt(Schedule):
    """1 at first, then the inverse square root of the step (Raffel et al. 2020, sec. 3.1.2).

    The paper's rate 1 / sqrt(max(step, k)) is this schedule with `learning_rate` 1 / sqrt(k). The
    schedule times a warm-up is `ProductSchedule.params(schedules=[Warmup, InverseSqrt])`.

    >>> InverseSqrt.params(hold_steps=100).build()(np.array([0, 100, 400]))
    array([1. , 1. , 0.5], dtype=float32)
    """

    hold_steps: int = 10_000  # steps at 1, the paper's k; the factor is 1/2 at step 4 * hold_steps

    POSITIVE = ("hold_steps",)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        hold = float(self.p.hold_steps)
        return (hold / xp.maximum(step, hold)) ** 0.5


class Transformer(Schedule):
    """The schedule of the Transformer (Vaswani et al. 2017, eq. 3).

    It rises for `warmup_steps`, then falls with the inverse square root of the step. It is the
    learning rate itself, so `learning_rate` is usually 1.

    >>> Transformer.params(model_dim=4, warmup_steps=4).build()(np.array([0, 3, 15]))
    array([0.0625, 0.25  , 0.125 ], dtype=float32)
    """

    model_dim: int  # width of the model
    warmup_steps: int = 4000  # steps of the rise
    first_step: Literal[0, 1] = 1  # number of the first step; MLPerf's reference counts from 0

    POSITIVE = ("model_dim", "warmup_steps")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        step = step + float(self.p.first_step)
        scale, rise = self.p.model_dim**-0.5, step * self.p.warmup_steps**-1.5
        return scale * xp.minimum(xp.maximum(step, 1.0) ** -0.5, rise)


class Piecewise(Schedule):
    """Constant between boundaries; a boundary step still has the earlier value, as in Keras.

    Piecewise.params(boundaries=[100, 200], values=[1.0, 0.1, 0.01])    # 0.1 from step 101 on

    >>> schedule = Piecewise.params(boundaries=[100, 200], values=[1.0, 0.1, 0.01]).build()
    >>> schedule(np.array([100, 101, 201]))
    array([1.  , 0.1 , 0.01], dtype=float32)
    """

    boundaries: tuple[int, ...]  # last step of each value but the last, rising
    values: tuple[float, ...]  # the factors, one more than boundaries

    def check(self) -> None:
        super().check()
        p = self.p
        ranges.check_not_negative(p, "boundaries", "values")
        if any(a >= b for a, b in pairwise(p.boundaries)):
            raise ParamError(f"boundaries={list(p.boundaries)} do not rise")
        if len(p.values) != len(p.boundaries) + 1:
            raise ParamError(
                f"{len(p.values)} values for {len(p.boundaries)} boundaries: give one value more"
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
    gamma: float = 1.0  # exp_range: factor per step of the height above low

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
