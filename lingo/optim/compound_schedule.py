"""Schedules that are made of other schedules.

Warmup.params(num_steps=1000, then=Cosine.params(num_steps=9000, end=0.1))
SequentialSchedule.params(parts=[(LinearRate.params(start=0.0, end=1.0), 100), (Cosine, 900)])
ProductSchedule.params(schedules=[InverseSqrt, Cooldown.params(num_steps=1000)])
"""

from __future__ import annotations

import functools
import math
import operator
from itertools import accumulate
from types import ModuleType
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError
from lingo.optim.run_length import RunLength
from lingo.optim.schedule import ConstantRate, LinearRate, Schedule


class Warmup(Schedule):
    """Rises to the first factor of another schedule, then follows that schedule.

    The other schedule's step 0 is the end of the warm-up. With `start=0` the first update has a
    learning rate of 0, as in most published recipes.

    >>> import numpy as np
    >>> from lingo.optim import Cosine
    >>> then = Cosine.params(num_steps=10)
    >>> Warmup.params(num_steps=4, then=then).build()(np.array([0, 2, 4, 14]))
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    num_steps: int  # steps of the rise; 0: no rise
    start: float = 0.0  # factor at step 0, relative to the factor at the end of the rise
    curve: Literal["linear", "exponential"] = "linear"  # exponential: the same ratio at each step
    then: Schedule = ConstantRate  # what follows

    NOT_NEGATIVE = ("num_steps", "start")

    def check(self) -> None:
        super().check()
        if self.p.curve == "exponential" and self.p.start == 0:
            raise ParamError("start=0: an exponential rise begins above 0, for example at 0.01")

    def setup(self) -> None:
        self.then = self.p.then.build()

    def inner(self) -> list[tuple[int, Schedule]]:
        return [(self.p.num_steps, self.then)]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        length, start = max(self.p.num_steps, 1), self.p.start
        if self.p.curve == "exponential":
            rise = start ** (1.0 - xp.minimum(step, float(length)) / length)
        else:
            rise = start + (1.0 - start) * step / length
        later = self.then.factor(xp.maximum(step - self.p.num_steps, 0.0), xp)
        return xp.where(step < self.p.num_steps, rise * later, later)


class EpochWarmup(Schedule):
    """Rises linearly, for some epochs, to another schedule's first factor, then follows that one.

    The rise may end between two steps. Step 0 of `then` is the last warm-up step, at which the
    factor of `then` is multiplied by the rise, as in MLPerf's reference of ResNet-50 with LARS
    (training 0.6).

    >>> import numpy as np
    >>> from lingo.optim import Polynomial
    >>> then = Polynomial.params(num_steps=10)
    >>> params = EpochWarmup.params(epochs=2.5, examples_per_epoch=10, batch_size=10, then=then)
    >>> params.build()(np.array([0, 1, 2, 7]))
    array([0.  , 0.4 , 0.8 , 0.25], dtype=float32)
    """

    epochs: float  # length of the rise
    examples_per_epoch: int  # examples in the training data
    batch_size: int  # examples per step
    then: Schedule = ConstantRate  # what follows

    POSITIVE = ("epochs", "examples_per_epoch", "batch_size")

    def setup(self) -> None:
        self.then, p = self.p.then.build(), self.p
        self.length = p.epochs * p.examples_per_epoch / p.batch_size  # steps, not a whole number

    def inner(self) -> list[tuple[int, Schedule]]:
        return [(math.floor(self.length), self.then)]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        rise, whole = xp.minimum(step / self.length, 1.0), math.floor(self.length)
        later = self.then.factor(xp.maximum(step - whole, 0.0), xp)
        return xp.where(step <= whole, rise * later, later)


class InEpochs(Schedule):
    """Another schedule, whose numbers of steps are numbers of epochs.

    An epoch is a pass over the run's training data. Its length is known when the data is open. Only
    `Exponential` takes numbers with a fraction; `EpochWarmup` rises for a part of an epoch.

    >>> import numpy as np
    >>> from lingo.optim import Cosine, KnownLength
    >>> schedule = InEpochs.params(schedule=Warmup.params(num_steps=1, then=Cosine)).build()
    >>> schedule.end_with(KnownLength(steps=30, steps_per_epoch=10))
    >>> schedule(np.array([0, 5, 10, 30]))
    array([0. , 0.5, 1. , 0. ], dtype=float32)
    """

    schedule: Schedule  # its step is the fraction of epochs done; None in it: until the run's end

    def setup(self) -> None:
        self.schedule = self.p.schedule.build()

    def counts_epochs(self) -> bool:
        return True

    def ends_with_run(self) -> bool:
        return self.schedule.ends_with_run()

    def end_with(self, run: RunLength, *, start: int = 0) -> None:
        self._run, self._start = run, start
        self.schedule.end_with(_RunInEpochs(run, start))

    def factor(self, step: Any, xp: ModuleType) -> Any:
        if self._run is None:
            raise ParamError("InEpochs: there is no run whose epochs could be counted")
        return self.schedule.factor(step / self._run.steps_per_epoch, xp)


class _RunInEpochs(NamedTuple):
    """The rest of a run after the step `start`, whose steps are epochs."""

    run: RunLength
    start: int

    @property
    def steps(self) -> float:
        return (self.run.steps - self.start) / self.run.steps_per_epoch

    steps_per_epoch: float = 1.0


class SwitchedWarmup(Schedule):
    """Rises linearly from 0 towards 1, then switches to another schedule in mid-course.

    The other schedule also counts from step 0, so the factor jumps where the rise ends. MLPerf's
    BERT reference and Devlin et al.'s code warm up this way. With a negative `start_step`, the
    schedule begins inside the rise: the factor of step t is (t - start_step) / num_steps.

    >>> import numpy as np
    >>> then = LinearRate.params(num_steps=10)
    >>> SwitchedWarmup.params(num_steps=4, then=then).build()(np.array([0, 3, 4, 5]))
    array([0.  , 0.75, 0.6 , 0.5 ], dtype=float32)
    """

    num_steps: int  # steps from factor 0 to factor 1
    start_step: int = 0  # step at which the rise has factor 0; at most 0
    then: Schedule = ConstantRate  # what follows, from its own step `num_steps + start_step`

    POSITIVE = ("num_steps",)

    def check(self) -> None:
        super().check()
        if not -self.p.num_steps < self.p.start_step <= 0:
            raise ParamError(
                f"start_step={self.p.start_step} is not between -num_steps={-self.p.num_steps} and"
                " 0: the rise would never be seen, or the first steps would have negative rates"
            )

    def setup(self) -> None:
        self.then = self.p.then.build()

    def inner(self) -> list[tuple[int, Schedule]]:
        return [(0, self.then)]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        done, length = step - self.p.start_step, self.p.num_steps
        return xp.where(done < length, done / length, self.then.factor(step, xp))


class SequentialSchedule(Schedule):
    """Runs schedules one after the other, each from its own step 0; the last one never ends.

    A schedule with a field `num_steps` that is not set inherits the length of its part.

    >>> import numpy as np
    >>> from lingo.optim import Cosine
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

    def inner(self) -> list[tuple[int, Schedule]]:
        lengths = [length for _, length in self.p.parts]
        return list(zip(accumulate(lengths, initial=0), self.schedules, strict=False))

    def factor(self, step: Any, xp: ModuleType) -> Any:
        value = None
        for start, schedule in self.inner():
            factor = schedule.factor(xp.maximum(step - start, 0.0), xp)
            value = factor if value is None else xp.where(step < start, value, factor)
        return value


class ProductSchedule(Schedule):
    """Multiplies schedules, all from the same step 0.

    >>> import numpy as np
    >>> from lingo.optim import InverseSqrt
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

    def inner(self) -> list[tuple[int, Schedule]]:
        return [(0, schedule) for schedule in self.schedules]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        factors = [schedule.factor(step, xp) for schedule in self.schedules]
        return functools.reduce(operator.mul, factors)


class Cooldown(Schedule):
    """Stays at 1, then falls in the last steps of the run; multiply it with another schedule.

    >>> import numpy as np
    >>> from lingo.optim import KnownLength
    >>> schedule = Cooldown.params(num_steps=4).build()
    >>> schedule.end_with(KnownLength(10))
    >>> schedule(np.array([0, 6, 8, 10]))
    array([1. , 1. , 0.5, 0. ], dtype=float32)
    """

    num_steps: int  # steps of the fall
    end_step: int | None = None  # step at which the fall ends; None: the end of the run
    decay: Schedule = LinearRate  # the fall; inherits num_steps

    OPTIONAL = ("end_step",)
    POSITIVE = ("num_steps", "end_step")

    def setup(self) -> None:
        self.decay = self.p.decay.build(num_steps=self.p.num_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        start = self._num_steps("end_step") - self.p.num_steps
        return self.decay.factor(xp.maximum(step - start, 0.0), xp)


class WarmupStableDecay(Schedule):
    """Rises to 1, stays at 1 for most of a run, then falls (Hu et al. 2024, sec. 4.2).

    A run may continue from any checkpoint of the stable part, whose length need not be known
    beforehand. The fall is any schedule that starts at 1; the paper uses `Exponential`. Without
    `stable_steps` the fall ends with the run.

    >>> import numpy as np
    >>> schedule = WarmupStableDecay.params(warmup_steps=4, stable_steps=8, decay_steps=4)
    >>> schedule.build()(np.array([0, 2, 4, 12, 14]))
    array([0. , 0.5, 1. , 1. , 0.5], dtype=float32)
    """

    warmup_steps: int  # steps of the rise from 0; 0: no rise
    stable_steps: int | None = None  # steps at 1; None: the rest of the run
    decay_steps: int  # steps of the fall
    decay: Schedule = LinearRate  # the fall; inherits decay_steps as its num_steps

    OPTIONAL = ("stable_steps",)
    POSITIVE = ("decay_steps",)
    NOT_NEGATIVE = ("warmup_steps", "stable_steps")

    def setup(self) -> None:
        self.decay = self.p.decay.build(num_steps=self.p.decay_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        if p.stable_steps is not None:
            start = p.warmup_steps + p.stable_steps
        else:
            start = max(p.warmup_steps, self._num_steps("stable_steps") - p.decay_steps)
        fall = self.decay.factor(xp.maximum(step - start, 0.0), xp)
        return xp.where(step < p.warmup_steps, step / max(p.warmup_steps, 1), fall)
