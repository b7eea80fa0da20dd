"""ReLU, convolution, normalization: the units of cells found by architecture search.

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import Conv2D, SeparableConv2D
from lingo.layers.vision.conv_norm import convolve_and_normalize

NARROWING = 4  # channels of a bottleneck's result / channels in its middle


def unit_flops(convs: Sequence[Layer], norms: Sequence[Layer], shape: Sequence[int]) -> int:
    """Returns the operations of convolutions with a norm each, for images of shape [B, H, W, C]."""
    total = 0
    for conv, norm in zip(convs, norms, strict=True):
        total += conv.flops(shape)
        shape = conv.output_shape(shape)
        total += norm.flops(shape)
        shape = norm.output_shape(shape)
    return total


class ReluConvNorm(Layer):
    """ReLU, convolution and normalization, once with a 1x1 window, or as a bottleneck.

    A bottleneck repeats the three: with a 1x1 window to F / 4 channels, with the windows of
    `narrow`, and with a 1x1 window to F channels. The first window of `narrow` has the stride.
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    stride: int = 1  # how many times smaller the result is
    narrow: list[tuple[int, int]] = []  # windows in the middle of a bottleneck
    conv: Conv2D = Conv2D
    norm: Norm = BatchNorm

    def check(self) -> None:
        if self.p.narrow and self.p.output_dim % NARROWING:
            raise ParamError(
                f"output_dim={self.p.output_dim} is not a multiple of {NARROWING}, as a bottleneck"
                " needs: take another number of filters"
            )

    def setup(self) -> None:
        p = self.p
        windows = [(1, 1), *p.narrow, (1, 1)] if p.narrow else [(1, 1)]
        dims = [p.dim, *[p.output_dim // NARROWING] * (len(windows) - 1), p.output_dim]
        self.convs = [
            p.conv.build(
                dim=dims[i],
                output_dim=dims[i + 1],
                kernel=window,
                stride=p.stride if i == bool(p.narrow) else 1,
            )
            for i, window in enumerate(windows)
        ]
        self.norms = [p.norm.build(dim=dim) for dim in dims[1:]]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = convolve_and_normalize(tf.nn.relu(x), conv=conv, norm=norm)
        return x

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for an input of shape [B, H, W, C]."""
        for conv in self.convs:
            shape = conv.output_shape(shape)
        return tuple(shape)

    def flops(self, shape: Sequence[int]) -> int:
        return unit_flops(self.convs, self.norms, shape)


class SeparableUnit(Layer):
    """ReLU, separable convolution and normalization, twice; only the first has the stride."""

    dim: int  # channels of input and output
    kernel: tuple[int, int] = (3, 3)  # height and width of the windows
    stride: int = 1  # how many times smaller the result is
    dilation: int = 1  # step between a window's positions, in convolutions without a stride
    conv: SeparableConv2D = SeparableConv2D
    norm: Norm = BatchNorm

    def setup(self) -> None:
        p = self.p
        shape = {"dim": p.dim, "output_dim": p.dim, "kernel": p.kernel}
        self.convs = [
            p.conv.build(**shape, stride=stride, dilation=p.dilation if stride == 1 else 1)
            for stride in (p.stride, 1)
        ]
        self.norms = [p.norm.build(dim=p.dim) for _ in self.convs]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', C], in the layer's dtype, for images x [B, H, W, C]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(tf.nn.relu(x)))
        return x

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for an input of shape [B, H, W, C]."""
        for conv in self.convs:
            shape = conv.output_shape(shape)
        return tuple(shape)

    def flops(self, shape: Sequence[int]) -> int:
        return unit_flops(self.convs, self.norms, shape)


class FactorizedReduction(Layer):
    """Halves height and width by two 1x1 convolutions of stride 2, one shifted by (1, 1).

    After a ReLU, half of the channels come from positions (0, 0), (0, 2), ..., and the other half
    from positions (1, 1), (1, 3), ...
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    conv: Conv2D = Conv2D
    norm: Norm = BatchNorm

    def check(self) -> None:
        if self.p.output_dim % 2:
            raise ParamError(f"output_dim={self.p.output_dim} is odd: its two halves must be equal")

    def setup(self) -> None:
        p = self.p
        half = {"dim": p.dim, "output_dim": p.output_dim // 2, "kernel": (1, 1), "stride": 2}
        self.even, self.odd = p.conv.build(**half), p.conv.build(**half)
        self.norm = p.norm.build(dim=p.output_dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, ceil(H / 2), ceil(W / 2), F], in the layer's dtype, for x [B, H, W, C]."""
        x = tf.nn.relu(x)
        shifted = tf.pad(x[:, 1:, 1:], [[0, 0], [0, 1], [0, 1], [0, 0]])
        return self.norm(tf.concat([self.even(x), self.odd(shifted)], axis=-1))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for an input of shape [B, H, W, C]."""
        return (*self.even.output_shape(shape)[:-1], self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        joined = tuple(self.output_shape(shape))
        return self.even.flops(shape) + self.odd.flops(shape) + self.norm.flops(joined)
