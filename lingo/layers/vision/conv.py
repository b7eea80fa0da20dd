"""Convolution of images, and what convolutions share.

Axes: B batch, H height, W width, C input channels, F output channels; kernels are [kh, kw].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from lingo.config.lazy import tf
from lingo.layers.context import annotate
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.vision.window import Padding, check_kernel, count_windows


class Convolution(Layer, interface=True):
    """Products of windows of positions and a kernel, plus a bias; subclasses define `convolve`.

    Weights:
        w: [*window, C, F].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    padding: Padding = "SAME"  # what surrounds the input: zeros, or nothing
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    positions: ClassVar[tuple[str, ...]] = ("height", "width")
    """The logical axes of positions."""

    def setup(self) -> None:
        p, window = self.p, self.window()
        shape, axes = [*window, p.dim, p.output_dim], (*[None] * len(window), *p.axes)
        fan_in = math.prod(window) * p.dim
        self.w = self.weight("w", shape, axes=axes, init=p.init.build(), fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [p.output_dim], axes=p.axes[1:], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, *positions, F], in the layer's dtype, for x [B, *positions, C]."""
        p = self.p
        y = self.convolve(tf.cast(x, p.dtype))
        y = y + self.b if p.use_bias else y
        return annotate(y, "batch", *self.positions, p.axes[1] or "channels")

    def window(self) -> tuple[int, ...]:
        """Returns the size of the kernel along each axis of positions."""
        return self.p.kernel

    def convolve(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the result without the bias; both have the layer's dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no convolve")

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for x of shape [B, *positions, C]."""
        batch, *positions, _ = shape
        p = self.p
        windows = count_windows(positions, self.window(), p.stride, p.padding, p.dilation)
        return (batch, *windows, p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for x of shape [B, *positions, C], including those on padding."""
        return 2 * math.prod(self.window()) * self.p.dim * math.prod(self.output_shape(shape))


class Conv2D(Convolution):
    """A 2D convolution of images [B, H, W, C].

    With padding SAME, zeros surround the image and the result has height ceil(H / stride); with
    VALID, windows lie inside the image. Initial weights have variance 2 / (kh kw C), which
    preserves the variance of activations after a ReLU (He et al. 2015, eq. 10).

    Weights:
        w: [kh, kw, C, F].
        b: [F], with `use_bias`.
    """

    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # from one window to the next, in both directions
    dilation: int = 1  # from one position of a window to the next (Yu and Koltun 2016)

    def check(self) -> None:
        check_kernel(self.p)

    def convolve(self, x: tf.Tensor) -> tf.Tensor:
        p = self.p
        return tf.nn.conv2d(x, self.w, p.stride, p.padding, dilations=p.dilation)
