"""Convolutions of each channel by itself.

Axes: B batch, H height, W width, C input channels, M filters for each channel, F output channels;
kernels are [kh, kw].
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.layers.convolution import DepthwiseConv
from lingo.layers.initial import FanIn
from lingo.layers.layer import Layer
from lingo.layers.vision.conv import Conv2D
from lingo.layers.window import Padding


class DepthwiseConv2D(DepthwiseConv):
    """A 2D convolution with filters of its own for each channel: no output mixes channels.

    Output channels c * M to c * M + M - 1 come from input channel c. Initial weights have variance
    2 / (kh kw), which preserves the variance of activations after a ReLU (He et al. 2015, eq. 10).
    Inputs are [B, H, W, C], results [B, H', W', C * M].

    Weights:
        w: [kh, kw, C, M].
        b: [C * M], with `use_bias`.
    """

    kernel: tuple[int, int] = (3, 3)  # height and width of the window

    rank = 2


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
