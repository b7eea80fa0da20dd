"""Convolution of sequences.

Axes: B batch, T positions, C input channels, F output channels; kernels have k positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.convolution import apply_kernel
from lingo.layers.vision.window import Padding, check_kernel, count_windows


class Conv1D(Layer):
    """A convolution along positions, such as those of sound.

    With padding SAME, zeros surround the sequence and the result has length ceil(T / stride); with
    VALID, windows lie inside the sequence. A result depends on later positions, too, and on those
    of other documents in an example. Initial weights have variance 2 / (k C), as in `Conv2D`.

    Weights:
        w: [k, C, F].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: int = 3  # positions of the window
    stride: int = 1  # from one window to the next
    dilation: int = 1  # from one position of a window to the next
    padding: Padding = "SAME"  # what surrounds the sequence: zeros, or nothing
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    products = (Product("w"),)

    def check(self) -> None:
        check_kernel(self.p)

    def setup(self) -> None:
        p = self.p
        shape, axes, fan_in = [p.kernel, p.dim, p.output_dim], (None, *p.axes), p.kernel * p.dim
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, T', F], in the layer's dtype, for sequences x [B, T, C]."""
        p = self.p
        x, w = self.operands("w", input=tf.cast(x, p.dtype))
        x = annotate(x, "batch", None, p.axes[0] or "channels")  # XLA cuts some of them wrongly
        y = apply_kernel(x, w, stride=p.stride, padding=p.padding, dilation=p.dilation)
        y = y + self.b if p.use_bias else y
        return annotate(y, "batch", "length", p.axes[1] or "channels")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for sequences of shape [B, T, C]."""
        batch, length, _ = shape
        p = self.p
        windows = count_windows([length], [p.kernel], p.stride, p.padding, p.dilation)
        return (batch, *windows, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for sequences [B, T, C], including those on padding."""
        return 2 * self.p.kernel * self.p.dim * math.prod(self.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
