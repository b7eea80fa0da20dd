"""Schedules: the learning rate's factor as a function of the step.

A schedule is written once and computed twice: by NumPy on the host (plots, tests, progress) and by
TensorFlow in the program, in float32 both times. Steps count from 0: the first update is step 0.

    Warmup.params(num_steps=1000, then=Cosine.params(num_steps=9000, end=0.1))
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from lingo.config.params import Configurable, ParamError
from lingo.lazy import tf


class Schedule(Configurable, kind=True):
    """A factor of the learning rate. Subclasses define `factor`."""

    def __call__(self, step: Any) -> Any:
        """Returns the factor at a step.

        Args:
            step: updates done before; an int or an integer NumPy array of any shape, or a tensor.

        Returns:
            float32 of the same shape: NumPy for the host's steps, a tensor for a tensor.
        """
        if isinstance(step, (int, np.integer, np.ndarray)):
            return np.float32(self.factor(np.asarray(step).astype(np.float32), np))
        return self.factor(tf.cast(step, tf.float32), tf)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        """Returns the factor.

        Args:
            step: float32, NumPy or tensor, any shape.
            xp: `numpy` or `tensorflow`: both have minimum, maximum, where, cos, exp, ones_like.

        Returns:
            float32 of the shape of `step`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no factor")


class ConstantRate(Schedule):
    """The same at every step."""

    value: float = 1.0  # the factor

    def factor(self, step: Any, xp: ModuleType) -> Any:
        return self.p.value * xp.ones_like(step)


class LinearRate(Schedule):
    """A straight line from `start` to `end` in `num_steps`, and `end` from there on."""

    num_steps: int  # steps from start to end
    start: float = 1.0  # factor at step 0
    end: float = 0.0  # factor at num_steps and later

    def check(self) -> None:
        _check_num_steps(self.p.num_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        done = xp.minimum(step, float(self.p.num_steps)) / self.p.num_steps
        return self.p.start * (1.0 - done) + self.p.end * done


class Cosine(Schedule):
    """Half a period of a cosine from 1 down to `end` (Loshchilov & Hutter 2017, eq. 5)."""

    num_steps: int  # steps from 1 to end
    end: float = 0.0  # factor at num_steps and later

    def check(self) -> None:
        _check_num_steps(self.p.num_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        done = xp.minimum(step, float(self.p.num_steps)) / self.p.num_steps
        return self.p.end + (1.0 - self.p.end) * 0.5 * (1.0 + xp.cos(math.pi * done))


class Warmup(Schedule):
    """Rises in a straight line to what another schedule starts with, then follows that one.

    The other schedule's own step 0 is the end of the warm-up. With `start=0` the very first update
    has a learning rate of 0, as in most published recipes.
    """

    num_steps: int  # steps of the rise; 0: none
    start: float = 0.0  # height of step 0, as a part of what the rise ends at
    then: Schedule = ConstantRate  # what follows

    def check(self) -> None:
        if self.p.num_steps < 0:
            raise ParamError(f"num_steps={self.p.num_steps} is negative")

    def setup(self) -> None:
        self.then = self.p.then.build()

    def factor(self, step: Any, xp: ModuleType) -> Any:
        length = max(self.p.num_steps, 1)
        rise = self.p.start + (1.0 - self.p.start) * step / length
        later = self.then.factor(xp.maximum(step - self.p.num_steps, 0.0), xp)
        return xp.where(step < self.p.num_steps, rise * later, later)


class Transformer(Schedule):
    """The schedule of the Transformer (Vaswani et al. 2017, eq. 3).

    A rise in `warmup_steps`, then a fall with the square root of the step. It is the learning rate
    itself, so `learning_rate` is usually 1; the paper counts steps from 1.
    """

    model_dim: int  # width of the model
    warmup_steps: int = 4000  # steps of the rise

    def check(self) -> None:
        for name in ("model_dim", "warmup_steps"):
            if getattr(self.p, name) < 1:
                raise ParamError(f"{name}={getattr(self.p, name)} is not positive")

    def factor(self, step: Any, xp: ModuleType) -> Any:
        step = step + 1.0
        scale = self.p.model_dim**-0.5
        return scale * xp.minimum(step**-0.5, step * self.p.warmup_steps**-1.5)


def _check_num_steps(num_steps: int) -> None:
    if num_steps < 1:
        raise ParamError(f"{num_steps=} is not positive")
