"""Quantization domains: how the factors of products are quantized in and after training (Lingvo).

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Configurable, ParamError
from lingo.layers.quantization.schedule import FakeQuantizationSchedule, check_bits
from lingo.ops.quantization import (
    Channels,
    NaturalRange,
    Range,
    fake_quantize,
    fake_quantize_channels,
    fake_quantize_constant,
    natural_range,
    quantize_channels,
    value_range,
)
from lingo.ops.shape import sizes_of

_TINY = 1e-6  # a weight's range reaches at least this far on each side of 0


class Progress(NamedTuple):
    """The state of training when a tensor is quantized."""

    steps: Any  # float32 scalar, the training steps done; None: the domain counts no steps
    training: bool  # whether the call is part of a training step
    # whether ranges are constants of the graph, for a converter that reads them; after training
    constant_ranges: bool = False


class QDomain(Configurable, interface=True):
    """Quantizes weights and activations of any float type; results have the type of the inputs."""

    decay: ClassVar[float | None] = None
    """Decay per step of the moving averages of activations' ranges; None: no range is measured."""

    @property
    def counts_steps(self) -> bool:
        """Whether the domain needs `Progress.steps`, so that training steps have to be counted."""
        return False

    @property
    def group_size(self) -> int | None:
        """How many neighbouring examples share a range in training; None: all examples of a call.

        It matters only for domains that measure ranges.
        """
        return 1

    @property
    def level_bits(self) -> int:
        """The number of bits of a quantized value."""
        return 8

    def weight(self, w: tf.Tensor, sum_axes: Sequence[int], now: Progress) -> tf.Tensor:
        """Returns the quantized weight w, any shape; the product sums over its `sum_axes`."""
        raise NotImplementedError(f"{type(self).__name__} has no weight")

    def channels(self, w: tf.Tensor, sum_axes: Sequence[int]) -> Channels | None:
        """Returns a weight's 8-bit levels and scale; None if the domain has no such levels.

        Levels times scale is the result of `weight`.
        """
        return None

    def activation(self, x: tf.Tensor, limits: Range | None, now: Progress) -> tf.Tensor:
        """Returns quantized activations x [B, ...].

        `limits` is the range of x: in training the result of `measure`, after training its moving
        average. None: the domain measures no ranges.
        """
        raise NotImplementedError(f"{type(self).__name__} has no activation")

    def natural(self, x: tf.Tensor, name: NaturalRange, now: Progress) -> tf.Tensor:
        """Returns quantized activations x, any shape, that are results of the function `name`.

        Their range is known: results of "tanh", for example, are in [-1, 1].
        """
        raise NotImplementedError(f"{type(self).__name__} has no natural")

    def measure(self, x: tf.Tensor) -> Range:
        """Returns the ranges of activations x [B, ...] in training, float32 [B or 1, 1, ...].

        There is a range for each example, or one for all.
        """
        raise NotImplementedError(f"{type(self).__name__} has no measure")


class PassiveAsymQDomain(QDomain):
    """Measures the ranges of activations, and rounds values from the first step on.

    In training, an activation is rounded to levels between its least value (0 at most) and its
    largest value (0 at least). After training the levels are between the moving averages of these
    two. A range that is not finite does not change the averages.

    Departs from Lingvo, which takes the extremes of each replica's batch: here each example has its
    own range, and the average is over all examples. So no result depends on how a batch is split
    into replicas, shards, micro-batches or accumulated parts. With `statistics_over=None` all
    examples of a call share a range.
    """

    bits: int = 8  # number of bits of a quantized value
    range_decay: float = 0.99  # decay per step of the ranges' moving averages
    delay_start_steps: int = 0  # training steps without rounding; -1: training never rounds
    # number of examples that share a range in training; None: all examples of a call
    statistics_over: int | None = 1
    per_channel: bool = (
        True  # whether each output of a weight has its own range, symmetric around 0
    )

    def check(self) -> None:
        check_bits(self.p.bits)
        ranges.check_fraction(self.p, "range_decay")
        ranges.check_positive(self.p, "statistics_over")
        if self.p.delay_start_steps < -1:
            raise ParamError(
                f"delay_start_steps={self.p.delay_start_steps} is less than -1, which means never"
            )

    @property
    def decay(self) -> float:
        return self.p.range_decay

    @property
    def counts_steps(self) -> bool:
        return self.p.delay_start_steps > 0

    @property
    def group_size(self) -> int | None:
        return self.p.statistics_over

    @property
    def level_bits(self) -> int:
        return self.p.bits

    def weight(self, w: tf.Tensor, sum_axes: Sequence[int], now: Progress) -> tf.Tensor:
        if self.p.per_channel:
            return self._delay(w, fake_quantize_channels(w, sum_axes, bits=self.p.bits), now)
        low, high = value_range(w)
        limits = Range(tf.minimum(low, -_TINY), tf.maximum(high, _TINY))
        return self._quantize(w, limits, now)

    def channels(self, w: tf.Tensor, sum_axes: Sequence[int]) -> Channels | None:
        return _byte_channels(w, sum_axes, self.p.bits) if self.p.per_channel else None

    def activation(self, x: tf.Tensor, limits: Range | None, now: Progress) -> tf.Tensor:
        return x if limits is None else self._quantize(x, limits, now)

    def natural(self, x: tf.Tensor, name: NaturalRange, now: Progress) -> tf.Tensor:
        return self._quantize(x, natural_range(name, bits=self.p.bits), now)

    def measure(self, x: tf.Tensor) -> Range:
        batch, *rest = sizes_of(x)
        size = self.p.statistics_over
        if size is None:
            return value_range(x)
        low, high = value_range(x, range(1, len(x.shape)))
        if size == 1:
            return Range(low, high)
        if isinstance(batch, int) and batch % size:
            raise ParamError(
                f"statistics_over={size} does not divide the {batch} examples of a call:"
                " take another, or larger parts of the batch"
            )
        least = tf.reduce_min(tf.reshape(low, [-1, size]), axis=1)
        largest = tf.reduce_max(tf.reshape(high, [-1, size]), axis=1)
        shape = [batch, *[1] * len(rest)]
        return Range(*(tf.reshape(tf.repeat(v, size), shape) for v in (least, largest)))

    def _quantize(self, x: tf.Tensor, limits: Range, now: Progress) -> tf.Tensor:
        rounding = fake_quantize_constant if now.constant_ranges else fake_quantize
        return self._delay(x, rounding(x, limits, bits=self.p.bits), now)

    def _delay(self, x: tf.Tensor, rounded: tf.Tensor, now: Progress) -> tf.Tensor:
        """Returns x during the first `delay_start_steps` training steps, else `rounded`."""
        delay = self.p.delay_start_steps if now.training else 0
        if delay < 0:
            return x
        return tf.where(now.steps >= delay, rounded, x) if delay else rounded


class SymmetricScheduledClipQDomain(QDomain):
    """Clips all values to one symmetric range, which a schedule shrinks before it rounds values.

    No ranges are measured. Once rounding has begun, activations with a known range, such as results
    of tanh, are rounded to levels of that range instead.
    """

    schedule: FakeQuantizationSchedule = FakeQuantizationSchedule  # range and start of rounding

    def setup(self) -> None:
        self.schedule = self.p.schedule.build()

    @property
    def counts_steps(self) -> bool:
        return True

    @property
    def level_bits(self) -> int:
        return self.schedule.p.bits

    def weight(self, w: tf.Tensor, sum_axes: Sequence[int], now: Progress) -> tf.Tensor:
        del sum_axes
        return self.schedule.quantize(w, now.steps)

    def activation(self, x: tf.Tensor, limits: Range | None, now: Progress) -> tf.Tensor:
        del limits
        return self.schedule.quantize(x, now.steps)

    def natural(self, x: tf.Tensor, name: NaturalRange, now: Progress) -> tf.Tensor:
        bits = self.schedule.p.bits
        y = fake_quantize(x, natural_range(name, bits=bits), bits=bits)
        return tf.where(self.schedule.rounds(now.steps), y, x)


class WeightQDomain(QDomain):
    """Rounds weights, but not activations; each output has its own levels, symmetric around 0."""

    bits: int = 8  # number of bits of a quantized value

    def check(self) -> None:
        check_bits(self.p.bits)

    @property
    def level_bits(self) -> int:
        return self.p.bits

    def weight(self, w: tf.Tensor, sum_axes: Sequence[int], now: Progress) -> tf.Tensor:
        return fake_quantize_channels(w, sum_axes, bits=self.p.bits)

    def channels(self, w: tf.Tensor, sum_axes: Sequence[int]) -> Channels | None:
        return _byte_channels(w, sum_axes, self.p.bits)

    def activation(self, x: tf.Tensor, limits: Range | None, now: Progress) -> tf.Tensor:
        return x

    def natural(self, x: tf.Tensor, name: NaturalRange, now: Progress) -> tf.Tensor:
        return x


def _byte_channels(w: tf.Tensor, sum_axes: Sequence[int], bits: int) -> Channels | None:
    return quantize_channels(w, sum_axes, bits=bits) if bits <= 8 else None
