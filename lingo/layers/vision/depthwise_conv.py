"""Convolutions of each channel by itself.

Axes: B batch, H height, W width, C input channels, M filters for each channel, F output channels;
kernels are [kh, kw].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.context import annotate, current
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.split_image import Windows, window_slices
from lingo.layers.vision.window import Padding, check_kernel, count_windows
from lingo.ops.shape import sizes_of


class DepthwiseConv2D(Layer):
    """A 2D convolution with filters of its own for each channel: no output mixes channels.

    Output channels c * M to c * M + M - 1 come from input channel c. Initial weights have variance
    2 / (kh kw), which preserves the variance of activations after a ReLU (He et al. 2015, eq. 10).

    Weights:
        w: [kh, kw, C, M].
        b: [C * M], with `use_bias`.
    """

    dim: int  # channels of the input
    multiplier: int = 1  # M, the filters of each channel
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # from one window to the next, in both directions
    dilation: int = 1  # from one position of a window to the next
    padding: Padding = "SAME"  # what surrounds the image: zeros, or nothing
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero
    axis: str | None = None  # logical axis of the channels

    products = (Product("w"),)

    def check(self) -> None:
        check_kernel(self.p)
        ranges.check_positive(self.p, "multiplier")

    def setup(self) -> None:
        p = self.p
        shape, axes = [*p.kernel, p.dim, p.multiplier], (None, None, p.axis, None)
        fan_in = math.prod(p.kernel)
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.dim * p.multiplier], axes=(p.axis,), init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', C * M], in the layer's dtype, for images x [B, H, W, C]."""
        p = self.p
        x, w = self.operands("w", input=tf.cast(x, p.dtype))
        convolve = _convolve if current().rules is None else _sum_products
        y = convolve(x, w, stride=p.stride, padding=p.padding, dilation=p.dilation)
        y = y + self.b if p.use_bias else y
        return annotate(y, "batch", "height", "width", p.axis or "channels")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        p = self.p
        windows = count_windows(image, p.kernel, p.stride, p.padding, p.dilation)
        return (batch, *windows, p.dim * p.multiplier)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for images of shape [B, H, W, C], including those on padding."""
        return 2 * math.prod(self.p.kernel) * math.prod(self.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        # products of its channels at each place of the window are added
        copies = math.prod(self.p.kernel)
        return [
            batch_residual(1, call.shape, "input"),
            batch_residual(copies, self.output_shape(call.shape)),
        ]


class SeparableConv2D(Layer):
    """A convolution of each channel by itself, then one with a 1x1 window (Chollet 2017, sec. 3).

    It takes kh kw M + M F operations for each input channel and position; `Conv2D` takes kh kw F.
    """

    dim: int  # channels of the input
    output_dim: int  # F, channels of the output
    multiplier: int = 1  # M, the filters of each channel
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # from one window to the next, in both directions
    dilation: int = 1  # from one position of a window to the next
    padding: Padding = "SAME"  # what surrounds the image: zeros, or nothing
    use_bias: bool = False  # whether the 1x1 convolution has a bias
    depthwise: DepthwiseConv2D = DepthwiseConv2D.params(init=FanIn)  # no ReLU follows it
    pointwise: Conv2D = Conv2D

    def setup(self) -> None:
        p = self.p
        self.depthwise = p.depthwise.build(
            dim=p.dim,
            multiplier=p.multiplier,
            kernel=p.kernel,
            stride=p.stride,
            dilation=p.dilation,
            padding=p.padding,
        )
        self.pointwise = p.pointwise.build(
            dim=p.dim * p.multiplier, output_dim=p.output_dim, kernel=(1, 1), use_bias=p.use_bias
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        return self.pointwise(self.depthwise(x))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        return self.pointwise.output_shape(self.depthwise.output_shape(shape))

    def flops(self, shape: Sequence[int]) -> int:
        inside = self.depthwise.output_shape(shape)
        return self.depthwise.flops(shape) + self.pointwise.flops(inside)


def _convolve(
    x: tf.Tensor, w: tf.Tensor, *, stride: int, padding: Padding, dilation: int
) -> tf.Tensor:
    """Returns images [B, H', W', C * M], of the type of the images x [B, H, W, C]."""
    strides = [1, stride, stride, 1]
    return tf.nn.depthwise_conv2d(x, w, strides, padding, dilations=[dilation, dilation])


def _sum_products(
    x: tf.Tensor, w: tf.Tensor, *, stride: int, padding: Padding, dilation: int
) -> tf.Tensor:
    """Returns what `_convolve` does, as the sum of a product for each position of the kernel.

    It is for meshes: XLA's partitioner computes wrong gradients of the kernel of a depthwise
    convolution where several devices have the same part of a batch. The sum is in float32.
    """
    *window, dim, multiplier = sizes_of(w)
    windows = Windows((window[0], window[1]), stride, padding, dilation)
    y = tf.zeros([], tf.float32)
    for place, values in window_slices(tf.cast(x, tf.float32), windows):
        y += tf.expand_dims(values, -1) * tf.cast(w[place], tf.float32)
    return tf.cast(tf.reshape(y, [*sizes_of(y)[:-2], dim * multiplier]), x.dtype)
