"""Batch normalization, which normalizes each channel over a group of examples.

Axes: B batch, C channels, G groups of neighbouring examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.initial import ONES, ZEROS
from lingo.layers.inputs import BatchRequirements
from lingo.layers.norm import Norm
from lingo.ops.quantization import round_to_multiple
from lingo.ops.shape import size_of, sizes_of

# up to this many groups are normalized one by one by a fused kernel, more by one formula for all
_MOST_KERNELS = 16


Moment = Literal["mean_square", "variance"]


class Groups(NamedTuple):
    """How the examples of a call are grouped."""

    count: Any  # number of groups with examples in this call, an int or int32 scalar
    size: Any  # number of examples per group in this call, an int or int32 scalar
    shared_by: int  # number of replicas that share a group, each with `size` of its examples


class Moments(NamedTuple):
    """The mean and variance of each group of examples, float32."""

    mean: tf.Tensor  # [G, C]
    variance: tf.Tensor  # [G, C], the mean square of deviations from the mean
    # [G], the number of positions of this call that count; None: all examples count equally
    count: tf.Tensor | None = None


class BatchNorm(Norm):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ioffe and Szegedy 2015, alg. 1).

    In training, mean and variance are over a group of neighbouring examples and all positions. With
    `statistics_over` set, results do not depend on how the batch is split into micro-batches,
    accumulated parts or replicas, as long as no group is split. Only replicas may share a group
    (Ying et al. 2018, sec. 3.2); they exchange the group's moments. With `statistics_over=None` all
    examples of a call are one group, so its size depends on how the batch is split. The runtime
    `Replicated` refuses that.

    Outside training, mean and variance come from moving averages of E[x] and E[x^2] over each
    step's whole batch, as in GPipe (Huang et al. 2019, sec. 2.2); the variance is E[x^2] - E[x]^2.
    E[x] and E[x^2] are sums over examples, so their averages are exact however a batch is split.
    The usual moving average of the batches' variances is not, and it lacks the variance of the
    batches' means. `moving_moment="variance"` keeps the average of the groups' variances, as Keras
    and PyTorch do, so that their weights can be read and written bit for bit; it is as exact as the
    groups are. (PyTorch's variance divides by one less than the number of values.)

    With a `mask`, such as the frames of recordings that are no padding, only positions where it is
    true count. They have equal weights in a group, and in the moving averages of a step, however
    the batch is split.

    If gamma and beta are frozen (`Frozen`), the layer uses its moving averages in training, too,
    and does not update them, so that a frozen layer always computes the same function. With
    `adapts_if_frozen`, a frozen layer uses the batch's statistics and updates the averages.

    Weights:
        gamma: [C], initially ones, or with `zero_init` zeros.
        beta: [C], initially zeros.

    States:
        moving_mean: [C], the moving average of x; initially zeros.
        moving_mean_square: [C], the moving average of x^2; initially ones.
        moving_variance: [C], in its place with `moving_moment="variance"`; initially ones.
    """

    epsilon: float = 1e-5  # added to the variance
    decay: float = 0.9  # decay of the moving averages per step
    # number of examples in a group; None: all examples of a call are one group
    statistics_over: int | None = None
    zero_init: bool = False  # whether gamma starts at zero, as at the end of a residual branch
    moving_moment: Moment = "mean_square"  # the second moving average: of x^2, or of variances
    # whether a frozen layer, too, uses the batch's statistics and updates the moving averages
    adapts_if_frozen: bool = False

    takes_scale = True
    takes_mask = True
    positionwise = True

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "decay")
        ranges.check_positive(self.p, "statistics_over")

    def setup(self) -> None:
        shape, decay = [self.p.dim], self.p.decay
        init = ZEROS if self.p.zero_init else ONES
        self.gamma = self.weight("gamma", shape, axes=(None,), init=init, dtype="float32")
        self.beta = self.weight("beta", shape, axes=(None,), init=ZEROS, dtype="float32")
        self.moving_mean = self.state("moving_mean", shape, decay=decay)
        second = f"moving_{self.p.moving_moment}"
        setattr(self, second, self.state(second, shape, decay=decay, init=ONES))

    def __call__(
        self, x: tf.Tensor, *, scale: tf.Tensor | None = None, mask: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Normalizes each channel of x, [B, ..., C], any float type; statistics are float32.

        `mask`, bool [B, ...], is true at positions that count in training; None: all positions.

        `scale`, float32 [C], is given if x consists of integers times `scale`. Outside training,
        the constant that is added to x is then rounded to an integer times `scale`, since 8-bit
        chips add integers (Jacob et al. 2018, sec. 2.4).

        Raises ParamError in training if B is known and `statistics_over` does not divide it.
        """
        x = tf.cast(x, tf.float32)
        if context.current().training and not self.is_fixed():
            groups = self._group(x)
            if mask is not None:
                y, moments = self._by_masked_formula(x, groups, mask)
            else:
                normalize = self._by_kernel if _has_kernel(groups) else self._by_formula
                y, moments = normalize(x, groups)
            self._update_averages(groups, moments)
        else:
            mean, variance = self.moving_mean, self._moving_variance()
            factor = tf.math.rsqrt(variance + self.p.epsilon) * self.gamma
            if scale is None:
                y = (x - mean) * factor + self.beta
            else:
                offset = self.beta - mean * factor
                y = x * factor + round_to_multiple(offset, scale * factor)
        return tf.cast(y, self.p.dtype)

    def is_fixed(self) -> bool:
        """Returns whether the layer, since it is frozen, uses its moving averages in training.

        The layer does not update the averages then.
        """
        return not self.p.adapts_if_frozen and self.has_frozen_weights()

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        size = self.p.statistics_over
        return BatchRequirements(examples_together=size or 1, examples_counted=size or 0)

    def _moving_variance(self) -> tf.Tensor:
        """Returns the variance that is used outside training, float32 [C], not negative."""
        if self.p.moving_moment == "variance":
            return self.moving_variance
        return tf.maximum(self.moving_mean_square - tf.square(self.moving_mean), 0.0)

    def _group(self, x: tf.Tensor) -> Groups:
        batch, replicas = size_of(x, 0), context.current().replicas
        size = self.p.statistics_over or batch
        shared_by = size // batch if replicas is not None and size % batch == 0 else 1
        size //= shared_by  # this replica's part of a group
        if isinstance(batch, int) and batch % size:
            raise ParamError(
                f"{self.path or type(self).__name__}: statistics_over={size} does not divide the"
                f" {batch} examples of a call: take another, or larger parts of the batch"
            )
        return Groups(batch // size, size, shared_by)

    def _by_kernel(self, x: tf.Tensor, groups: Groups) -> tuple[tf.Tensor, Moments]:
        """Normalizes x like `_by_formula`, but by one fused TensorFlow operation for each group."""
        parts = tf.split(tf.reshape(x, [x.shape[0], -1, 1, self.p.dim]), groups.count)
        outputs = [
            tf.raw_ops.FusedBatchNormV3(
                x=part,
                scale=self.gamma,
                offset=self.beta,
                mean=tf.constant([], tf.float32),
                variance=tf.constant([], tf.float32),
                epsilon=self.p.epsilon,
            )
            for part in parts
        ]
        y = tf.reshape(tf.concat([output.y for output in outputs], axis=0), sizes_of(x))
        # the kernel's variance divides by one less than the number of values
        num = tf.cast(tf.reduce_prod(tf.shape(parts[0])[:2]), tf.float32)
        variance = tf.stack([output.batch_variance for output in outputs])
        variance *= tf.maximum(num - 1, 1) / num
        return y, Moments(tf.stack([output.batch_mean for output in outputs]), variance)

    def _by_formula(self, x: tf.Tensor, groups: Groups) -> tuple[tf.Tensor, Moments]:
        """Returns x with each group normalized, and the moments of the groups."""
        batch, *rest = sizes_of(x)
        grouped = tf.reshape(x, [-1, groups.size, *rest])
        axes = list(range(1, len(x.shape)))
        mean = tf.reduce_mean(grouped, axes, keepdims=True)  # [G, 1, ..., 1, C]
        deviation = grouped - mean
        variance = tf.reduce_mean(tf.square(deviation), axes, keepdims=True)
        replicas = context.current().replicas
        if replicas is not None and groups.shared_by > 1:
            # combines the moments of equal parts of a group (Chan et al. 1979); the formula
            # E[x^2] - E[x]^2 would lose digits
            parts = replicas.gather_neighbours(tf.stack([mean, variance]), groups.shared_by)
            means, variances = tf.unstack(parts, axis=1)
            mean = tf.reduce_mean(means, axis=0)
            variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)
            deviation = grouped - mean
        y = deviation * (tf.math.rsqrt(variance + self.p.epsilon) * self.gamma) + self.beta
        moments = (tf.reshape(value, [-1, self.p.dim]) for value in (mean, variance))
        return tf.reshape(y, [batch, *rest]), Moments(*moments)

    def _by_masked_formula(
        self, x: tf.Tensor, groups: Groups, mask: tf.Tensor
    ) -> tuple[tf.Tensor, Moments]:
        """Returns x normalized like `_by_formula`, by moments of the positions in `mask`."""
        batch, *rest = sizes_of(x)
        grouped = tf.reshape(x, [-1, groups.size, *rest])
        counts = tf.reshape(tf.cast(mask, tf.float32), [-1, groups.size, *rest[:-1], 1])
        axes = list(range(1, len(x.shape)))
        count = tf.reduce_sum(counts, axes, keepdims=True)  # [G, 1, ..., 1]
        divisor = tf.maximum(count, 1.0)  # a group of padding has the mean 0
        mean = tf.reduce_sum(grouped * counts, axes, keepdims=True) / divisor
        deviation = grouped - mean
        variance = tf.reduce_sum(tf.square(deviation) * counts, axes, keepdims=True) / divisor
        replicas = context.current().replicas
        if replicas is not None and groups.shared_by > 1:
            # combines the moments of unequal parts of a group (Chan et al. 1979)
            local = tf.stack([mean, variance, count + tf.zeros_like(mean)])
            parts = replicas.gather_neighbours(local, groups.shared_by)
            means, variances, sizes = tf.unstack(parts, axis=1)
            shares = sizes / tf.maximum(tf.reduce_sum(sizes, axis=0), 1.0)
            mean = tf.reduce_sum(shares * means, axis=0)
            variance = tf.reduce_sum(shares * (variances + tf.square(means - mean)), axis=0)
            deviation = grouped - mean
        y = deviation * (tf.math.rsqrt(variance + self.p.epsilon) * self.gamma) + self.beta
        mean, variance = (tf.reshape(value, [-1, self.p.dim]) for value in (mean, variance))
        moments = Moments(mean, variance, tf.reshape(count, [-1]))
        return tf.reshape(y, [batch, *rest]), moments

    def _update_averages(self, groups: Groups, moments: Moments) -> None:
        """Adds E[x], and E[x^2] or the variance, over the call's examples to the moving averages.

        The weight is the number of examples, or of the positions that count.
        """
        second = moments.variance
        if self.p.moving_moment == "mean_square":
            second += tf.square(moments.mean)
        names = ("moving_mean", f"moving_{self.p.moving_moment}")
        for name, value in zip(names, (moments.mean, second), strict=True):
            if moments.count is not None:
                total = tf.reduce_sum(moments.count[:, None] * value, axis=0)
                self.batch_statistic(name, total, tf.reduce_sum(moments.count))
                continue
            total = tf.cast(groups.size, tf.float32) * tf.reduce_sum(value, axis=0)
            self.batch_statistic(name, total, groups.count * groups.size)


def _has_kernel(groups: Groups) -> bool:
    """Whether TensorFlow's fused kernel normalizes these groups; never with XLA or on a mesh."""
    call = context.current()
    return (
        not call.compiled
        and call.rules is None
        and not call.mapped_axes
        and groups.shared_by == 1
        and isinstance(groups.count, int)
        and groups.count <= _MOST_KERNELS
    )
