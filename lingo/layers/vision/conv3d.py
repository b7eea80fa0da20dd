"""Convolution, transposed convolution and pooling of volumes: images with a depth.

Axes: B batch, D depth, H height, W width, C input channels, F output channels; kernels are
[kd, kh, kw].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.convolution import apply_kernel
from lingo.layers.vision.split_image import Windows, annotate_image, convolve, window_slices
from lingo.layers.vision.window import Padding, check_kernel, count_windows
from lingo.ops.shape import sizes_of


class Conv3D(Layer):
    """A 3D convolution: `Conv2D` of volumes.

    Weights:
        w: [kd, kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: tuple[int, int, int] = (3, 3, 3)  # depth, height and width of the window
    stride: int = 1  # from one window to the next, in all directions
    dilation: int = 1  # from one position of a window to the next
    padding: Padding = "SAME"  # what surrounds the volume: zeros, or nothing
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    products = (Product("w"),)

    def check(self) -> None:
        check_kernel(self.p)

    def setup(self) -> None:
        p = self.p
        fan_in = math.prod(p.kernel) * p.dim
        shape, axes = [*p.kernel, p.dim, p.output_dim], (None, None, None, *p.axes)
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, D', H', W', F], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        p = self.p
        x, w = self.operands("w", input=tf.cast(x, p.dtype))

        def compute(x: tf.Tensor, padding: Any) -> tf.Tensor:
            y = apply_kernel(x, w, stride=p.stride, padding=padding, dilation=p.dilation)
            return y + self.b if p.use_bias else y

        windows = Windows(p.kernel, p.stride, p.padding, p.dilation)
        return convolve(x, compute, windows, channels=p.axes, pads=False)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        batch, *volume, _ = shape
        p = self.p
        windows = count_windows(volume, p.kernel, p.stride, p.padding, p.dilation)
        return (batch, *windows, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for volumes of a shape, including those on padding."""
        return 2 * math.prod(self.p.kernel) * self.p.dim * math.prod(self.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]


class EnlargingConv3D(Layer):
    """The transpose of a 3D convolution whose windows lie side by side: it enlarges volumes.

    Each position of the input becomes a window of the output: windows are as long as their stride,
    which is the only case that a U-Net needs. So it is a matrix product for each position, and no
    device needs another one's rows. An output sums C inputs, so weights of variance 2 / C preserve
    the variance of activations after a ReLU.

    Weights:
        w: [stride, stride, stride, C, F].
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    stride: int = 2  # how many times larger the result is, in all directions
    init: Initializer = FanIn.params(scale=2.0)  # of w
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    products = (Product("w"),)

    def check(self) -> None:
        ranges.check_positive(self.p, "stride")

    def setup(self) -> None:
        p = self.p
        shape, axes = [*[p.stride] * 3, p.dim, p.output_dim], (None, None, None, *p.axes)
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=p.dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, D', H', W', F], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        x, w = self.operands("w", input=tf.cast(x, self.p.dtype))
        batch, *volume, _ = sizes_of(x)
        y = tf.einsum("bdhwc,ijkcf->bdihjwkf", x, w)
        sizes = [size * self.p.stride for size in volume]
        return annotate_image(tf.reshape(y, [batch, *sizes, self.p.output_dim]), self.p.axes[1])

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        batch, *volume, _ = shape
        return (batch, *[size * self.p.stride for size in volume], self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * self.p.stride**3 * math.prod(shape) * self.p.output_dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]


class MaxPool3D(Layer):
    """The maximum of each window of a volume, for each channel; windows lie side by side."""

    window: int = 2  # depth, height and width of a window, and the distance to the next

    def check(self) -> None:
        ranges.check_positive(self.p, "window")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, D', H', W', C], in the layer's dtype, for volumes x [B, D, H, W, C]."""
        x = tf.cast(x, self.p.dtype)
        slices = [y for _, y in window_slices(x, self._windows(), fill=x.dtype.min)]
        return annotate_image(functools.reduce(tf.maximum, slices))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        batch, *volume, channels = shape
        return (batch, *self._windows().count(volume), channels)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]  # it is compared with the maxima

    def _windows(self) -> Windows:
        return Windows((self.p.window,) * 3, self.p.window, "SAME")
