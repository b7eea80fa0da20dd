"""Weight normalization: the norm of each output's weights is a separate parameter."""

from __future__ import annotations

import math

from lingo.config.lazy import tf
from lingo.layers.initial import ONES
from lingo.layers.wrap.reweighted import Matrix, Reweighted

_TINY = 1e-12  # keeps the gradient of a norm finite at zero


class WeightNorm(Reweighted):
    """Computes with scale * w / |w|, |w| over the inputs of each output (Salimans and Kingma 2016,
    eq. 2).

    Departs from the paper: the scale is relative to the norm expected of a matrix of variance
    1 / fan-in, and is initially 1 instead of computed from a batch.

    Weights, for each matrix of output sizes O:
        <name>_scale: [*O], initially ones.
    """

    def declare(self, matrix: Matrix) -> None:
        self.companion_weight(matrix, "scale", matrix.outputs, axes=matrix.output_axes, init=ONES)

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        first = len(matrix.stack_sizes(w))
        inputs = list(range(first, first + len(matrix.inputs)))
        square = tf.reduce_sum(tf.square(w), axis=inputs, keepdims=True)
        length = math.sqrt(math.prod(matrix.inputs) / matrix.spec.fan_in)
        scale = tf.reshape(self.read(matrix, "scale"), square.shape)
        return length * scale * w * tf.math.rsqrt(square + _TINY)
