"""Weight normalization: the length of each output's weights is a parameter of its own."""

from __future__ import annotations

import math

from lingo.config.lazy import tf
from lingo.layers.initial import ONES
from lingo.layers.wrap.reweighted import Matrix, Reweighted

_TINY = 1e-12  # keeps the gradient of a length finite at zero


class WeightNorm(Reweighted):
    """Computes with scale * w / |w|, |w| over the inputs of each output (Salimans and Kingma 2016,
    eq. 2).

    Departs from the paper: the scale is in units of the length that a matrix of variance 1 / fan-in
    is expected to have, and the first one is 1, not taken from a batch.

    Weights, beside each matrix of outputs O:
        <name>_scale: [*O], ones at first.
    """

    def declare(self, matrix: Matrix) -> None:
        self.companion_weight(matrix, "scale", matrix.outputs, axes=matrix.output_axes, init=ONES)

    def reweight(self, matrix: Matrix, w: tf.Tensor) -> tf.Tensor:
        first = len(matrix.stack_sizes(w))
        inputs = list(range(first, first + matrix.num_inputs))
        square = tf.reduce_sum(tf.square(w), axis=inputs, keepdims=True)
        length = math.sqrt(math.prod(matrix.inputs) / matrix.spec.fan_in)
        scale = tf.reshape(self.read(matrix, "scale"), square.shape)
        return length * scale * w * tf.math.rsqrt(square + _TINY)
