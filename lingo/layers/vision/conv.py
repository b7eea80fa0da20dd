"""Convolution of images.

Axes: B batch, H height, W width, C input channels, F output channels; kernels are [kh, kw].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.convolution import apply_kernel
from lingo.layers.vision.split_image import Windows, convolve
from lingo.layers.vision.window import Padding, check_kernel, count_windows


class Conv2D(Layer):
    """A 2D convolution.

    With padding SAME, zeros surround the image and the result has height ceil(H / stride); with
    VALID, windows lie inside the image. Initial weights have variance 2 / (kh kw C), which
    preserves the variance of activations after a ReLU (He et al. 2015, eq. 10).

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # from one window to the next, in both directions
    dilation: int = 1  # from one position of a window to the next (Yu and Koltun 2016)
    padding: Padding = "SAME"  # what surrounds the image: zeros, or nothing
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    products = (Product("w"),)

    def check(self) -> None:
        check_kernel(self.p)

    def setup(self) -> None:
        p = self.p
        fan_in = math.prod(p.kernel) * p.dim
        shape, axes = [*p.kernel, p.dim, p.output_dim], (None, None, *p.axes)
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        p = self.p
        x, w = self.operands("w", input=tf.cast(x, p.dtype))

        def compute(x: tf.Tensor, padding: Any) -> tf.Tensor:
            y = apply_kernel(x, w, stride=p.stride, padding=padding, dilation=p.dilation)
            return y + self.b if p.use_bias else y

        windows = Windows(p.kernel, p.stride, p.padding, p.dilation)
        return convolve(x, compute, windows, channels=p.axes)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        p = self.p
        windows = count_windows(image, p.kernel, p.stride, p.padding, p.dilation)
        return (batch, *windows, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for images of shape [B, H, W, C], including those on padding."""
        taps = math.prod(self.p.kernel) * self.p.dim
        return 2 * taps * math.prod(self.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
