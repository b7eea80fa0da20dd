"""Batch normalization: normalizes each channel over groups of examples.

Axes: B batch, C channels, G groups of neighbouring examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.initial import ONES, ZEROS
from lingo.layers.inputs import BatchRequirements
from lingo.layers.norm import Norm
from lingo.ops.shape import sizes_of


class GroupStatistics(NamedTuple):
    """Examples in groups, and the statistics of each group, float32."""

    deviation: tf.Tensor  # [G, B / G, ..., C], the input minus the mean
    mean: tf.Tensor  # [G, 1, ..., 1, C]
    variance: tf.Tensor  # [G, 1, ..., 1, C], the mean square of `deviation` in the whole group


class BatchNorm(Norm):
    """y = gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ioffe and Szegedy 2015, alg. 1).

    In training, mean and variance are over a group of neighbouring examples and all positions. With
    `statistics_over` set, results do not depend on how the batch is cut into micro-batches,
    accumulated parts or replicas, as long as no group is cut. Only replicas may share a group
    (Ying et al. 2018, sec. 3.2): they exchange its moments. With `statistics_over=None` all
    examples of a call are one group, whose size depends on that cut; `Replicated` refuses that.

    Outside training, they come from moving averages of E[x] and E[x^2] of each step's whole batch,
    as in GPipe (Huang et al. 2019, sec. 2.2); the variance is E[x^2] - E[x]^2. Both are sums over
    examples, so they are exact for any parts of a batch. An average of the variances of batches, as
    elsewhere, is not, and leaves out the variance of the means of steps.

    Weights:
        gamma: [C], initially ones, or zeros with `zero_init`.
        beta: [C], initially zeros.

    States:
        moving_mean: [C], the moving average of x; initially zeros.
        moving_mean_square: [C], the moving average of x^2; initially ones.
    """

    epsilon: float = 1e-5  # added to the variance
    decay: float = 0.9  # of the moving averages, once a step
    statistics_over: int | None = None  # examples in a group; None: all of the call
    zero_init: bool = False  # whether gamma starts at zero, as at the end of a residual branch

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
        self.moving_mean_square = self.state("moving_mean_square", shape, decay=decay, init=ONES)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes each channel of x, [B, ..., C], any float type; statistics are float32.

        In training it raises ParamError if `statistics_over` does not divide B.
        """
        x = tf.cast(x, tf.float32)
        if context.current().training:
            groups = self._group(x)
            self._update_averages(groups)
            scale = tf.math.rsqrt(groups.variance + self.p.epsilon) * self.gamma
            y = tf.reshape(groups.deviation * scale + self.beta, sizes_of(x))
        else:
            mean = self.moving_mean
            variance = tf.maximum(self.moving_mean_square - tf.square(mean), 0.0)
            y = (x - mean) * (tf.math.rsqrt(variance + self.p.epsilon) * self.gamma) + self.beta
        return tf.cast(y, self.p.dtype)

    def batch_requirements(self, shape: Sequence[int | None] = (None, None)) -> BatchRequirements:
        size = self.p.statistics_over
        return BatchRequirements(examples_together=size or 1, examples_counted=size or 0)

    def _group(self, x: tf.Tensor) -> GroupStatistics:
        batch, *rest = sizes_of(x)
        size, replicas = self.p.statistics_over or batch, context.current().replicas
        shared_by = size // batch if replicas is not None and size % batch == 0 else 1
        size //= shared_by  # what this replica has of a group
        if isinstance(batch, int) and batch % size:
            raise ParamError(
                f"{self.path or type(self).__name__}: statistics_over={size} does not divide the"
                f" {batch} examples of a call: take another, or larger parts of the batch"
            )
        groups = tf.reshape(x, [-1, size, *rest])
        axes = list(range(1, len(x.shape)))
        mean = tf.reduce_mean(groups, axes, keepdims=True)
        deviation = groups - mean
        variance = tf.reduce_mean(tf.square(deviation), axes, keepdims=True)
        if replicas is not None and shared_by > 1:
            # For parts of equal size (Chan et al. 1979); E[x^2] - E[x]^2 would lose digits.
            parts = replicas.gather_neighbours(tf.stack([mean, variance]), shared_by)
            means, variances = tf.unstack(parts, axis=1)
            mean = tf.reduce_mean(means, axis=0)
            variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)
            deviation = groups - mean
        return GroupStatistics(deviation, mean, variance)

    def _update_averages(self, groups: GroupStatistics) -> None:
        """Adds E[x] and E[x^2] over the call, weighted by its number of examples, to the states."""
        num_groups, size, *_ = sizes_of(groups.deviation)
        square = groups.variance + tf.square(groups.mean)
        for name, value in (("moving_mean", groups.mean), ("moving_mean_square", square)):
            total = tf.reduce_sum(tf.reshape(value, [-1, self.p.dim]), axis=0)
            self.batch_statistic(name, tf.cast(size, tf.float32) * total, num_groups * size)
