"""Schedules made of schedules: one after the other, multiplied, or in the three parts of a run.

Sequence.params(parts=[(LinearRate.params(start=0.0, end=1.0), 100), (Cosine, 900)])
Product.params(schedules=[Warmup.params(num_steps=1000), InverseSqrt.params(hold_steps=1000)])
"""

from __future__ import annotations

import functools
import operator
from types import ModuleType
from typing import Any

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.optim.schedule import LinearRate, Schedule


class Sequence(Schedule):
    """Schedules one after the other, each from its own step 0; the last one goes on for ever.

    A part that has `num_steps` and sets none takes the number of steps that the part lasts.
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
            mine = schedule.factor(xp.maximum(step - start, 0.0), xp)
            value = mine if value is None else xp.where(step < start, value, mine)
            start += num_steps
        return value


class Product(Schedule):
    """The product of schedules, all from the same step 0."""

    schedules: tuple[Schedule, ...]  # the factors

    def check(self) -> None:
        super().check()
        if not self.p.schedules:
            raise ParamError("schedules is empty: give at least one")

    def setup(self) -> None:
        self.schedules = [schedule.build() for schedule in self.p.schedules]

    def factor(self, step: Any, xp: ModuleType) -> Any:
        factors = [schedule.factor(step, xp) for schedule in self.schedules]
        return functools.reduce(operator.mul, factors)


class WarmupStableDecay(Schedule):
    """A rise to 1, most of a run at 1, and a short fall (Hu et al. 2024, sec. 4.2).

    The stable part needs no length known beforehand: a run may go on from any checkpoint in it. The
    fall is any schedule that starts at 1; the paper's own is `Exponential`.
    """

    warmup_steps: int  # steps of the rise from 0; 0: none
    stable_steps: int  # steps at 1
    decay_steps: int  # steps of the fall
    decay: Schedule = LinearRate  # the fall, offered decay_steps as its num_steps

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "warmup_steps", "stable_steps")
        ranges.check_positive(self.p, "decay_steps")

    def setup(self) -> None:
        self.decay = self.p.decay.build(num_steps=self.p.decay_steps)

    def factor(self, step: Any, xp: ModuleType) -> Any:
        p = self.p
        fall = self.decay.factor(xp.maximum(step - (p.warmup_steps + p.stable_steps), 0.0), xp)
        return xp.where(step < p.warmup_steps, step / max(p.warmup_steps, 1), fall)
