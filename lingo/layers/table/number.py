"""Layers for numbers of tables, whose states are fitted to rows.

Fitted rows are the first training rows, at most `lingo.learner.fit.MAX_EXAMPLES`.

Axes: B rows, N columns, K buckets.
"""

from __future__ import annotations

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.initial import ONES, ZEROS
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall


class Normalize(Layer):
    """z = (x - mean) / scale for each column, with the mean and deviation of the fitted rows.

    A missing number (NaN) becomes 0, as if it were the mean. The scale is the standard deviation,
    or 1 for a column whose numbers are all equal.

    States:
        mean: [N], fitted; initially zeros.
        scale: [N], fitted; initially ones.
    """

    dim: int  # N

    positionwise = True

    def check(self) -> None:
        ranges.check_positive(self.p, "dim")

    def setup(self) -> None:
        self.mean = self.state("mean", [self.p.dim], decay=1.0, init=ZEROS)
        self.scale = self.state("scale", [self.p.dim], decay=1.0, init=ONES)

    def fit(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the mean and scale of numbers, float [..., N], without the missing ones."""
        rows = np.asarray(x, np.float64).reshape(-1, self.p.dim)
        is_known = ~np.isnan(rows)
        num = np.maximum(is_known.sum(axis=0), 1)
        mean = np.where(is_known, rows, 0.0).sum(axis=0) / num
        deviation = np.where(is_known, rows - mean, 0.0)
        scale = np.sqrt(np.square(deviation).sum(axis=0) / num)
        # the deviation of equal numbers may be a rounding error of their mean
        is_constant = scale <= 1e-12 * np.abs(mean)
        return {"mean": mean, "scale": np.where(is_constant, 1.0, scale)}

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns z, [B, ..., N] in the layer's dtype, for x, any float type."""
        z = (tf.cast(x, tf.float32) - self.mean) / self.scale
        return tf.cast(tf.where(tf.math.is_nan(z), 0.0, z), self.p.dtype)

    def restore(self, z: tf.Tensor) -> tf.Tensor:
        """Returns the x, float32 [B, ..., N], for which the call returns z, any float type."""
        return tf.cast(z, tf.float32) * self.scale + self.mean

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []


class Bucketize(Layer):
    """The bucket of each number, between quantiles of the fitted rows.

    Bucket 0 is for missing numbers (NaN). Buckets 1 to K hold about equally many fitted rows. A
    number that equals a boundary is in the upper bucket.

    States:
        boundaries: [N, K - 1], fitted quantiles in rising order; initially zeros.
    """

    dim: int  # N
    num_buckets: int = 10  # K, without the bucket for missing numbers

    positionwise = True

    def check(self) -> None:
        ranges.check_positive(self.p, "dim")
        if self.p.num_buckets < 2:
            raise ParamError(f"num_buckets={self.p.num_buckets}: give at least 2")

    def setup(self) -> None:
        shape = [self.p.dim, self.p.num_buckets - 1]
        self.boundaries = self.state("boundaries", shape, decay=1.0, init=ZEROS)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of buckets per column, [N], for `OneHot` or `EmbeddingTables`."""
        return (self.p.num_buckets + 1,) * self.p.dim

    def fit(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the quantiles of numbers, float [..., N], without the missing ones."""
        rows = np.asarray(x, np.float64).reshape(-1, self.p.dim)
        shares = np.arange(1, self.p.num_buckets) / self.p.num_buckets
        known = [column[~np.isnan(column)] for column in rows.T]
        quantiles = [np.quantile(c, shares) if len(c) else np.zeros_like(shares) for c in known]
        return {"boundaries": np.stack(quantiles)}

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the bucket of each number, int32 [B, ..., N], for x, any float type."""
        x = tf.cast(x, tf.float32)
        is_above = tf.expand_dims(x, -1) >= self.boundaries
        bucket = 1 + tf.reduce_sum(tf.cast(is_above, tf.int32), axis=-1)
        return tf.where(tf.math.is_nan(x), 0, bucket)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []
