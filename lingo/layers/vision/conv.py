"""Convolutions of images and volumes: over all channels, of each channel alone, and transposed.

Axes: B batch, D depth, H height, W width, C input channels, M filters for each channel, F
output channels; kernels are [kh, kw] or [kd, kh, kw].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers import window
from lingo.layers.convolution import Conv, Convolution, DepthwiseConv
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.window import Padding
from lingo.ops.shape import sizes_of


class Conv2D(Conv):
    """A 2D convolution.

    With padding SAME, zeros surround the image and the result has height ceil(H / stride); with
    CENTERED, too, and the middles of windows lie at 0, stride and so on, as in PyTorch; with VALID,
    windows lie inside the image. Initial weights have variance 2 / (kh kw C), which
    preserves the variance of activations after a ReLU (He et al. 2015, eq. 10). Inputs are
    [B, H, W, C], and results are [B, H', W', F].

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    kernel: tuple[int, int] = (3, 3)  # height and width of the window

    rank = 2


class Conv3D(Conv):
    """A 3D convolution, like `Conv2D`, of volumes [B, D, H, W, C] to [B, D', H', W', F].

    Weights:
        w: [kd, kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    kernel: tuple[int, int, int] = (3, 3, 3)  # depth, height and width of the window

    rank = 3


# ---- each channel by itself ----------------------------------------------------------------------


class DepthwiseConv2D(DepthwiseConv):
    """A 2D convolution with separate filters for each channel; no output mixes input channels.

    Output channels c * M to c * M + M - 1 come from input channel c. Initial weights have variance
    2 / (kh kw), which preserves the variance of activations after a ReLU (He et al. 2015, eq. 10).
    Inputs are [B, H, W, C], and results are [B, H', W', C * M].

    Weights:
        w: [kh, kw, C, M].
        b: [C * M], with `use_bias`.
    """

    kernel: tuple[int, int] = (3, 3)  # height and width of the window

    rank = 2


class SeparableConv2D(Layer):
    """A depthwise convolution, then a 1x1 convolution of all channels (Chollet 2017, sec. 3).

    For each input channel and position it takes kh kw M + M F multiply-adds, where `Conv2D` takes
    kh kw F.
    """

    dim: int  # channels of the input
    output_dim: int  # F, channels of the output
    multiplier: int = 1  # M, the filters of each channel
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # from one window to the next, in both directions
    dilation: int = 1  # from one position of a window to the next
    padding: Padding = "SAME"  # SAME and CENTERED: zeros surround the image; VALID: nothing does
    use_bias: bool = False  # whether the 1x1 convolution has a bias
    # the first convolution; its initial variance is for a layer that no ReLU follows
    depthwise: DepthwiseConv2D = DepthwiseConv2D.params(init=FanIn)
    pointwise: Conv2D = Conv2D  # the 1x1 convolution

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


# ---- transposed ----------------------------------------------------------------------------------


class TransposedConv2D(Convolution):
    """The transpose of a 2D convolution: each position of the input adds to a window of the output.

    Inputs are [B, H, W, C], and results are [B, H', W', F]. With padding SAME, H' is H * stride,
    and windows are cut off at the border. With VALID the result holds whole windows: H' is
    (H - 1) * stride + kh, or H * stride if the stride is larger than kh.

    An output sums kh kw C / stride^2 inputs on average. So initial weights of variance
    2 stride^2 / (kh kw C) preserve the variance of activations after a ReLU. The default `init` has
    this variance for a stride of 2; for other strides set `init=FanIn(scale=...)` with a scale of
    2 stride^2.

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    output_dim: int  # channels of the output
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 2  # from one window to the next, in both directions
    padding: Literal["SAME", "VALID"] = "SAME"  # whether windows are cut off at the border
    init: Initializer = FanIn.params(scale=8.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    rank = 2

    def check(self) -> None:
        ranges.check_positive(self.p, "kernel", "stride")

    def convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        p = self.p
        _, *sizes, _ = self.output_shape(sizes_of(x))
        x, whole = self._align(x)
        shape = tf.stack(self.output_shape(sizes_of(x)))
        y = tf.nn.conv2d_transpose(x, tf.transpose(w, [0, 1, 3, 2]), shape, p.stride, p.padding)
        return window.split_again(self.add_bias(y), sizes, p.axes[1], whole=whole)

    def _align(self, x: tf.Tensor) -> tuple[tf.Tensor, list[bool]]:
        """Prepares images whose axes are split over devices.

        Returns the images with zeros at the ends, so that devices have equal parts, and a list that
        says for each axis whether it is gathered to be whole (an empty list if no axis is split).
        An axis is gathered with padding VALID, or if windows reach beyond the next device.
        """
        if not window.is_split(x):
            return x, []
        p, sizes, whole = self.p, window.static_sizes(x), [False, False]
        for i, num_parts in enumerate(window.num_parts_of(len(sizes))):
            if num_parts > 1:
                part = -(-sizes[i] // num_parts)
                whole[i] = p.padding == "VALID" or p.kernel[i] > (part + 1) * p.stride
                sizes[i] = sizes[i] if whole[i] else part * num_parts
        if not all(whole) and window.has_copies(whole):
            sizes, whole = window.static_sizes(x), [True] * len(sizes)
        return window.annotate_image(window.pad_end(x, sizes), p.axes[0], whole=whole), whole

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        batch, *image, _ = shape
        p = self.p
        more = [max(k - p.stride, 0) if p.padding == "VALID" else 0 for k in p.kernel]
        sizes = [size * p.stride + n for size, n in zip(image, more, strict=True)]
        return (batch, *sizes, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for images of shape [B, H, W, C].

        Operations on parts of windows that are cut off are counted, too.
        """
        return 2 * math.prod(self.p.kernel) * math.prod(shape) * self.p.output_dim


class UpConv3D(Layer):
    """Enlarges volumes: the transpose of a 3D convolution whose windows lie side by side.

    Each position of the input becomes a window of the output. Windows are as long as their stride,
    which is the only case that a U-Net needs. So each window is a matrix product of one position,
    and no device needs rows of another device. An output sums C inputs, so weights of variance
    2 / C preserve the variance of activations after a ReLU.

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
        return window.annotate_image(
            tf.reshape(y, [batch, *sizes, self.p.output_dim]), self.p.axes[1]
        )

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for volumes of shape [B, D, H, W, C]."""
        batch, *volume, _ = shape
        return (batch, *[size * self.p.stride for size in volume], self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        return 2 * self.p.stride**3 * math.prod(shape) * self.p.output_dim

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
