"""Base classes of convolutions of any rank: of sequences, images and volumes.

`Convolution` has the code that does not depend on the rank: weights, windows, the shape of the
result, the number of operations and residuals. The windows of a `DilatedConvolution` may skip
positions. `Conv` sums all channels of a window, and `DepthwiseConv` computes each channel by
itself. A subclass for one rank, such as `Conv2D`, sets `rank` and declares `kernel`.

Axes: B batch, C input channels, F output channels, M filters for each channel; "..." are the axes
of positions, and k... the kernel's length along each of these axes. "Image" also stands for a
sequence or a volume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import window
from lingo.layers.context import current
from lingo.layers.initial import ZEROS, FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.window import Padding, Windows
from lingo.ops.shape import sizes_of


class Filters(NamedTuple):
    """The numbers of channels of a convolution, and their logical axes."""

    dims: tuple[int, int]  # the last two dims of w
    axes: tuple[str | None, str | None]  # logical axes of the last two dims of w
    fan_in: int  # input channels that each output channel sums
    output_dim: int  # channels of the result
    output_axis: str | None  # logical axis of the result's channels


class Convolution(Layer):
    """Multiplies a kernel with windows of an image; a sequence is an image of rank 1.

    A subclass sets `rank` and defines `convolve`. It declares the field `kernel` again, as an int
    for rank 1. By default each output sums all input channels; then the subclass declares the
    fields `output_dim` and `axes`, too. Otherwise it defines `filters`.

    Weights:
        w: [k..., *filters().dims].
        b: [F], with `use_bias`.
    """

    dim: int  # channels of the input
    kernel: tuple[int, ...]  # lengths of the window
    stride: int = 1  # from one window to the next, in all directions
    padding: Padding = "SAME"  # SAME and CENTERED: zeros surround the image; VALID: nothing does
    use_bias: bool = False  # whether b is added
    init: Initializer = FanIn.params(scale=2.0)  # of w; b starts at zero

    rank: ClassVar[int]
    """The number of axes of positions: 1 for sequences, 2 for images, 3 for volumes."""

    products = (Product("w"),)

    def filters(self) -> Filters:
        """Returns the number and logical axes of the channels of w and of the result."""
        p = self.p
        return Filters((p.dim, p.output_dim), p.axes, p.dim, p.output_dim, p.axes[1])

    def windows(self) -> Windows:
        """Returns the windows of the image that the kernel is multiplied with."""
        p = self.p
        lengths = (p.kernel,) if self.rank == 1 else p.kernel
        return Windows(lengths, p.stride, p.padding)

    def setup(self) -> None:
        p, lengths, filters = self.p, self.windows().lengths, self.filters()
        shape, axes = [*lengths, *filters.dims], (*[None] * self.rank, *filters.axes)
        fan_in = math.prod(lengths) * filters.fan_in
        init = p.init.build(fan_out=math.prod(lengths) * filters.output_dim)
        self.w = self.weight("w", shape, axes=axes, init=init, fan_in=fan_in)
        if p.use_bias:
            self.b = self.weight("b", [filters.output_dim], axes=[filters.output_axis], init=ZEROS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, ..., F], in the layer's dtype, for images x [B, ..., C] of any float type."""
        x, w = self.operands("w", input=tf.cast(x, self.p.dtype))
        return self.convolve(x, w)

    def convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        """Returns [B, ..., F] for images x [B, ..., C] and a kernel w, of the layer's dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no convolve")

    def add_bias(self, y: tf.Tensor) -> tf.Tensor:
        """Returns y + b, [B, ..., F], or y without `use_bias`."""
        return y + self.b if self.p.use_bias else y

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, ..., C]."""
        batch, *image, _ = shape
        return (batch, *self.windows().count(image), self.filters().output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations for images of shape [B, ..., C], operations on padding included.

        A multiply-add counts as two operations.
        """
        taps = math.prod(self.windows().lengths) * self.filters().fan_in
        return 2 * taps * math.prod(self.output_shape(shape))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]


class DilatedConvolution(Convolution):
    """A convolution whose windows may skip positions."""

    dilation: int = 1  # from one position of a window to the next (Yu and Koltun 2016)

    def check(self) -> None:
        window.check_kernel(self.p)

    def windows(self) -> Windows:
        return super().windows()._replace(dilation=self.p.dilation)


class Conv(DilatedConvolution):
    """A convolution in which each output sums all input channels of a window (see `Conv2D`)."""

    output_dim: int  # channels of the output
    axes: tuple[str | None, str | None] = (None, None)  # logical axes of input and output channels

    def convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        p = self.p

        def compute(x: tf.Tensor, padding: Any) -> tf.Tensor:
            y = apply_kernel(x, w, stride=p.stride, padding=padding, dilation=p.dilation)
            return self.add_bias(y)

        return window.map_windows(x, compute, self.windows(), channels=p.axes)


class DepthwiseConv(DilatedConvolution):
    """A convolution of each channel by itself (see `DepthwiseConv2D`)."""

    multiplier: int = 1  # M, the filters of each channel
    axis: str | None = None  # logical axis of the channels

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "multiplier")

    def filters(self) -> Filters:
        p = self.p
        return Filters((p.dim, p.multiplier), (p.axis, None), 1, p.dim * p.multiplier, p.axis)

    def convolve(self, x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        p = self.p
        windows = self.windows()
        if self.rank == 2 and current().rules is None:
            strides, dilations = [1, p.stride, p.stride, 1], [p.dilation, p.dilation]
            padding = windows.any_size_padding()
            if not isinstance(padding, str):  # no gradient takes numbers on every device
                x, padding = tf.pad(x, padding), "VALID"
            y = tf.nn.depthwise_conv2d(x, w, strides, padding, dilations=dilations)
        elif self.rank == 1 and p.dilation == 1 and current().rules is None:
            strides, padding = [1, p.stride, p.stride, 1], windows.any_size_padding()  # height 1
            if not isinstance(padding, str):
                x, padding = tf.pad(x, padding), "VALID"
            images = tf.nn.depthwise_conv2d(x[:, None], w[None], strides, padding)
            y = tf.squeeze(images, 1)
        else:
            y = sum_products(x, w, windows)
        return window.annotate_image(self.add_bias(y), p.axis)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        # one product per position of the window; the result is the sum of these products
        copies = math.prod(self.windows().lengths)
        products = batch_residual(copies, self.output_shape(call.shape))
        return [batch_residual(1, call.shape, "input"), products]


def apply_kernel(
    x: tf.Tensor, w: tf.Tensor, *, stride: int, padding: Any, dilation: int
) -> tf.Tensor:
    """Returns the convolution of images x with a kernel w, [B, ..., F].

    If the kernel has a single position, a matrix product computes the result. The reason is that
    TensorFlow computes convolutions on CPUs by oneDNN, whose gradients for such kernels are slower:
    with oneDNN, a step of ResNet-50 with 16 images of 64 pixels takes 7 % longer on two cores
    without AVX-512. With a stride and fewer than 16 channels, oneDNN's gradients also write outside
    their memory: https://github.com/uxlfoundation/oneDNN/issues/6035. Under XLA the operation stays
    a convolution, which XLA splits over the devices of a mesh.

    Args:
        x: [B, ..., C], any float type; there are one to three axes between B and C.
        w: [k..., C, F], of the same type as x.
        stride: from one window to the next, along each axis.
        padding: SAME, VALID, or for images of rank 2 the numbers of zeros before and after each
            axis of x.
        dilation: from one position of a window to the next, along each axis.

    Raises:
        ParamError: if x does not have C channels. TensorFlow itself would compute a grouped
            convolution for a multiple of C.
    """
    kernel: Any = w.shape
    *lengths, dim, output_dim = kernel
    if x.shape[-1] not in (None, dim):
        raise ParamError(f"dim={dim}, but the input has {x.shape[-1]} channels, as {x.shape}")
    if max(lengths) == 1 and not current().compiled:
        every = slice(None, None, stride)
        x = x if stride == 1 else x[:, *[every] * len(lengths)]
        return tf.tensordot(x, tf.reshape(w, [dim, output_dim]), 1)
    strides, dilations = ([1, *[n] * len(lengths), 1] for n in (stride, dilation))
    convolve = (tf.nn.conv1d, tf.nn.conv2d, tf.nn.conv3d)[len(lengths) - 1]
    return convolve(x, w, strides, padding, dilations=dilations)


def sum_products(x: tf.Tensor, w: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Returns a depthwise convolution as a sum of products, one per position of the kernel.

    It replaces the convolution on meshes, since XLA's partitioner computes wrong gradients of a
    depthwise convolution's kernel if several devices have the same part of a batch. The sum is
    computed in float32.

    Args:
        x: [B, ..., C], any float type.
        w: [k..., C, M], of the same type.
        windows: the windows of the kernel, of lengths `k...`.

    Returns:
        [B, ..., C * M], of the type of x.
    """
    y = tf.zeros([], tf.float32)
    for place, values in window.window_slices(tf.cast(x, tf.float32), windows):
        y += tf.expand_dims(values, -1) * tf.cast(w[place], tf.float32)
    *sizes, dim, multiplier = sizes_of(y)
    return tf.cast(tf.reshape(y, [*sizes, dim * multiplier]), x.dtype)
