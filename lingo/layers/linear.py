"""The dense layer: a matrix product with an optional bias.

Axes: D input width, F output width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual


class Linear(Layer):
    """A dense layer, y = x w + b, on the last axis of x.

    Weights:
        w: [D, F].
        b: [F], with `use_bias`.
    """

    dim: int  # width of the input
    output_dim: int  # width of the output
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn  # of w; b starts at zero
    axes: tuple[str | None, str | None] = ("embed", "mlp")  # logical axes of w

    positionwise = True
    products = (Product("w"),)

    def setup(self) -> None:
        p = self.p
        self.w = self.weight("w", [p.dim, p.output_dim], axes=p.axes, init=p.init.build())
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns y, [..., F], in the layer's dtype; x is [..., D], any float type."""
        # not einsum: the gradient of "...d,df->...f" takes 100 times as long
        y = tf.tensordot(*self.operands("w", input=tf.cast(x, self.p.dtype)), 1)
        return y + self.b if self.p.use_bias else y

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for x of shape [..., D]."""
        return (*shape[:-1], self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * math.prod(shape) * self.p.output_dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
