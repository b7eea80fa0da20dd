"""Normalization layers: over the features of a position, or over groups of an image's channels.

Axes: B batch, D width, C channels, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import ONES, ZEROS
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall, batch_residual
from lingo.ops.shape import expand_like, sizes_of


class Norm(Layer, interface=True):
    """Base class of normalization layers; statistics are float32 whatever the input's type."""

    dim: int  # width of the input
    epsilon: float = 1e-6  # added to the mean square or variance

    takes_scale: ClassVar[bool] = False
    """Whether `__call__` has an argument `scale`, for the `Layer.result_scale` of its input."""

    takes_mask: ClassVar[bool] = False
    """Whether `__call__` has an argument `mask`, for the positions that statistics count."""

    def check(self) -> None:
        ranges.check_not_negative(self.p, "epsilon")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        shape = call.shape
        if len(shape) in (4, 5):
            # the input and its deviation from the mean
            deviation = batch_residual(1, shape, is_elementwise=True)
            return [batch_residual(1, shape, "input"), deviation]
        if len(shape) not in (2, 3):
            return super().residuals(call)
        size, axes = (*shape[:2], self.p.dim), (*SEQUENCE_AXES, "embed")
        return [
            Residual(1, size, axes, origin="input"),
            Residual(1, size, axes, is_elementwise=True),
            # the next matrix product reads all features of the result, so it is not sharded there
            Residual(1, size, (*SEQUENCE_AXES, None), origin="output", is_elementwise=True),
        ]


class RmsNorm(Norm):
    """y = scale * x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019, eq. 4).

    Weights:
        scale: [D], with `use_scale`; initially ones, or with `adds_one` zeros.
    """

    use_scale: bool = True  # whether a trained scale multiplies the features
    adds_one: bool = False  # whether the features are multiplied by 1 + scale, as in Gemma

    positionwise = True

    def setup(self) -> None:
        if self.p.use_scale:
            shape, axes = [self.p.dim], ("embed",)
            init = ZEROS if self.p.adds_one else ONES
            self.scale = self.weight("scale", shape, axes=axes, init=init, dtype="float32")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the last axis of x, [..., D], any float type."""
        x = tf.cast(x, tf.float32)
        square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
        y = x * tf.math.rsqrt(square + self.p.epsilon)
        if self.p.use_scale:
            y *= 1 + self.scale if self.p.adds_one else self.scale
        return tf.cast(y, self.p.dtype)


class LayerNorm(Norm):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias (Ba et al. 2016, sec. 3).

    Weights:
        scale: [D], initially ones.
        bias: [D], initially zeros.
    """

    positionwise = True

    def setup(self) -> None:
        dim = [self.p.dim]
        self.scale = self.weight("scale", dim, axes=("embed",), init=ONES, dtype="float32")
        self.bias = self.weight("bias", dim, axes=("embed",), init=ZEROS, dtype="float32")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes the last axis of x, [..., D], any float type."""
        x = tf.cast(x, tf.float32)
        x -= tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
        y = x * tf.math.rsqrt(variance + self.p.epsilon) * self.scale + self.bias
        return tf.cast(y, self.p.dtype)


class GroupNorm(Norm):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (Wu and He 2018, eq. 1).

    The mean and variance of an example's group are over all positions and the group's C / G
    channels. No result depends on other examples, and there are no moving averages. With one group
    this is layer normalization over the whole image, with C groups instance normalization.

    With `is_cumulative`, for sequences, the statistics of a position are over it and all earlier
    positions, as in Lingvo's causal Conformer, so that sequences are also computed step by step.

    Weights:
        gamma: [C], initially ones, or with `zero_init` zeros.
        beta: [C], initially zeros.

    Caches, with `is_cumulative`:
        count: float32 [1], the number of positions so far.
        total, square: float32 [G], the sums over these positions of the mean m of a position's
            channels, and of m^2.
        spread: float32 [G], the sum over these positions of the variance of the channels.
    """

    num_groups: int = 32  # G
    zero_init: bool = False  # whether gamma starts at zero, as at the end of a residual branch
    is_cumulative: bool = False  # whether statistics leave out later positions

    takes_mask = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "num_groups")
        if self.p.dim % self.p.num_groups:
            raise ParamError(
                f"dim={self.p.dim} is not a multiple of num_groups={self.p.num_groups}"
            )

    def setup(self) -> None:
        shape, init = [self.p.dim], ZEROS if self.p.zero_init else ONES
        self.gamma = self.weight("gamma", shape, axes=(None,), init=init, dtype="float32")
        self.beta = self.weight("beta", shape, axes=(None,), init=ZEROS, dtype="float32")
        if self.p.is_cumulative:
            for name in _SUMS:
                size = 1 if name == "count" else self.p.num_groups
                self.cache(name, [size], axes=(None,), dtype="float32")

    def __call__(self, x: tf.Tensor, *, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Normalizes the channels of x, [B, ..., C], any float type; statistics are float32.

        `mask`, bool [B, ...], is true at positions that the statistics count; None: all positions.
        """
        x = tf.cast(x, tf.float32)
        *front, channels = sizes_of(x)
        groups = tf.reshape(x, [*front, self.p.num_groups, channels // self.p.num_groups])
        if self.p.is_cumulative:
            return self._scale(self._normalize_cumulatively(groups, mask)[0], front)
        axes = [*range(1, len(front)), len(front) + 1]
        if mask is None:
            groups -= tf.reduce_mean(groups, axes, keepdims=True)
            variance = tf.reduce_mean(tf.square(groups), axes, keepdims=True)
        else:
            counts = expand_like(tf.cast(mask, tf.float32), groups)
            size = tf.cast(channels // self.p.num_groups, tf.float32)
            count = tf.maximum(tf.reduce_sum(counts, axes, keepdims=True), 1.0) * size
            groups -= tf.reduce_sum(groups * counts, axes, keepdims=True) / count
            variance = tf.reduce_sum(tf.square(groups) * counts, axes, keepdims=True) / count
        return self._scale(groups * tf.math.rsqrt(variance + self.p.epsilon), front)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        if not self.p.is_cumulative:
            return super().step(x, index, inputs=inputs)
        x = tf.cast(x, tf.float32)
        *front, channels = sizes_of(x)
        groups = tf.reshape(x, [*front, self.p.num_groups, channels // self.p.num_groups])
        past = [getattr(self, name)[:, None] for name in _SUMS]
        y, sums = self._normalize_cumulatively(groups, None, past)
        for name, value in zip(_SUMS, sums, strict=True):
            self.new_cache(name, value[:, -1])
        return self._scale(y, front)

    def _normalize_cumulatively(
        self, groups: tf.Tensor, mask: tf.Tensor | None, past: Sequence[tf.Tensor] = ()
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Normalizes sequences [B, T, G, C / G] by the statistics up to each position.

        Returns them, and the sums of `_SUMS` up to each position, float32 [B, T, 1 or G]. `past`
        has these sums for earlier positions, [B, 1, 1 or G].
        """
        if len(groups.shape) != 4:
            raise ParamError(
                f"{self.path or 'GroupNorm'}: is_cumulative=True is for sequences [B, T, C], but"
                f" the input has {len(groups.shape) - 1} axes: take is_cumulative=False"
            )
        counts = tf.ones_like(groups[:, :, 0, :1]) if mask is None else _floats(mask)
        means = tf.reduce_mean(groups, -1)
        # not the sum of x^2, since E[x^2] - E[x]^2 loses the digits of a small variance
        spread = tf.reduce_mean(tf.square(groups - tf.expand_dims(means, -1)), -1)
        sums = [tf.cumsum(x * counts, axis=1) for x in (1.0, means, tf.square(means), spread)]
        if past:
            sums = [x + earlier for x, earlier in zip(sums, past, strict=True)]
        count = tf.maximum(sums[0], 1.0)
        mean, square, spread = (x / count for x in sums[1:])
        variance = tf.maximum(square - tf.square(mean), 0.0) + spread
        factor = tf.math.rsqrt(variance + self.p.epsilon)
        return (groups - mean[..., None]) * factor[..., None], sums

    def _scale(self, groups: tf.Tensor, front: Sequence[Any]) -> tf.Tensor:
        y = tf.reshape(groups, [*front, self.p.dim])
        return tf.cast(y * self.gamma + self.beta, self.p.dtype)


_SUMS = ("count", "total", "square", "spread")  # the caches of a cumulative norm


def _floats(mask: tf.Tensor) -> tf.Tensor:
    return tf.cast(mask, tf.float32)[:, :, None]
