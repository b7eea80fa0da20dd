"""Schedules that clip activations and weights to shrinking ranges, then quantize them (Lingvo).

Steps count from 0, and are ints or float32 scalars.
"""

from __future__ import annotations

from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.ops.quantization import Range, fake_quantize, symmetric_range


class LinearClippingCapSchedule(Configurable):
    """A cap on absolute values that changes linearly from `start_cap` to `end_cap`.

    The cap is start_cap before start_step, and end_cap after end_step. Between these steps it is
    r end_cap + (1 - r) start_cap with r = (step - start_step) / (end_step - start_step).

    >>> schedule = LinearClippingCapSchedule.params(end_step=10).build()
    >>> float(schedule.cap(5))
    4.5
    """

    start_step: int = 0  # the last step with start_cap
    end_step: int = 15000  # the first step with end_cap
    start_cap: float = 8.0  # the cap at first
    end_cap: float = 1.0  # the cap in the end

    def check(self) -> None:
        ranges.check_not_negative(self.p, "start_step")
        ranges.check_positive(self.p, "start_cap", "end_cap")
        if self.p.end_step <= self.p.start_step:
            raise ParamError(
                f"end_step={self.p.end_step} is not after start_step={self.p.start_step}"
            )

    def cap(self, step: Any) -> tf.Tensor:
        """Returns the cap at a step, a float32 scalar."""
        p = self.p
        return _linear_cap(step, range(p.start_step, p.end_step), p.start_cap, p.end_cap)

    def clip(self, x: tf.Tensor, step: Any) -> tf.Tensor:
        """Returns x, any shape and float type, cut to [-cap, cap]."""
        cap = tf.cast(self.cap(step), x.dtype)
        return tf.clip_by_value(x, -cap, cap)


class FakeQuantizationSchedule(Configurable):
    """Clips values to a shrinking range; from `quant_start_step` on, also rounds them to levels.

    For a cap c, which changes as in `LinearClippingCapSchedule`, the range is
    (-c, c (2^(bits-1) - 1) / 2^(bits-1)).
    """

    clip_start_step: int = 0  # step where the range begins to shrink; below 0: values never change
    clip_end_step: int = 15000  # step where the range stops shrinking
    quant_start_step: int = 15000  # first step that rounds: clip_end_step or later
    start_cap: float = 8.0  # c at first
    end_cap: float = 1.0  # c in the end
    bits: int = 8  # number of bits of a quantized value

    def check(self) -> None:
        p = self.p
        check_bits(p.bits)
        ranges.check_positive(p, "start_cap", "end_cap")
        if p.clip_end_step < p.clip_start_step:
            raise ParamError(
                f"clip_end_step={p.clip_end_step} is before clip_start_step={p.clip_start_step}"
            )
        if p.quant_start_step < p.clip_end_step:
            raise ParamError(
                f"quant_start_step={p.quant_start_step} is before clip_end_step={p.clip_end_step}:"
                " values are rounded to the levels of the final range"
            )

    def limits(self, step: Any) -> Range:
        """Returns the range that values are clipped to at a step, two float32 scalars."""
        p = self.p
        steps = range(p.clip_start_step, p.clip_end_step)
        return symmetric_range(_linear_cap(step, steps, p.start_cap, p.end_cap), bits=p.bits)

    def quantize(self, x: tf.Tensor, step: Any) -> tf.Tensor:
        """Returns x, any shape and float type, after the clipping or rounding of a step."""
        if self.p.clip_start_step < 0:
            return x
        low, high = (tf.stop_gradient(limit) for limit in self.limits(step))
        clipped = tf.clip_by_value(x, tf.cast(low, x.dtype), tf.cast(high, x.dtype))
        rounded = fake_quantize(x, Range(low, high), bits=self.p.bits)
        return tf.where(self.rounds(step), rounded, clipped)

    def rounds(self, step: Any) -> tf.Tensor:
        """Returns whether values are rounded at a step, a bool scalar."""
        p = self.p
        return (tf.cast(step, tf.float32) >= p.quant_start_step) & (p.clip_start_step >= 0)


def _linear_cap(step: Any, steps: range, start_cap: float, end_cap: float) -> tf.Tensor:
    """Returns a cap, a float32 scalar, that changes linearly during `steps`.

    If the range `steps` is empty, the cap changes at its start at once.
    """
    passed = tf.cast(step, tf.float32) - steps.start
    if not steps:
        return tf.where(passed < 0, start_cap, end_cap)
    ratio = tf.clip_by_value(passed / len(steps), 0.0, 1.0)
    return ratio * end_cap + (1.0 - ratio) * start_cap


def check_bits(bits: int) -> None:
    """Raises ParamError if the number of bits is not in 2 to 16."""
    if not 2 <= bits <= 16:
        raise ParamError(f"bits={bits} is not in 2 to 16")
