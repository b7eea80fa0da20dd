"""A convolution, a normalization and an activation, the building block of image networks.

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config.lazy import tf
from lingo.config.params import ParamError, fields
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.residual import ACTIVATION_COPIES, Residual, ResidualCall, batch_residual
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import Conv2D
from lingo.ops.activations import Activation, activate

_LARGE_IMAGE = (1024, 1024)  # height and width that any window fits into


class ConvNorm(Layer):
    """A convolution, a normalization of its channels, and an activation function."""

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    kernel: tuple[int, int] = (3, 3)  # height and width of the window
    stride: int = 1  # how many times smaller the result is
    activation: Activation = "relu"  # activation function after the normalization
    zero_init: bool = False  # whether gamma of the normalization starts at zero
    conv: Layer = Conv2D  # the convolution; `DepthwiseConv2D` needs output_dim=C
    norm: Norm = BatchNorm  # the normalization

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(
            dim=p.dim, output_dim=p.output_dim, kernel=p.kernel, stride=p.stride
        )
        self.norm = p.norm.build(dim=p.output_dim, zero_init=p.zero_init)
        self._check_parts()

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        y = convolve_and_normalize(x, conv=self.conv, norm=self.norm)
        return activate(y, self.p.activation)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        return self.conv.output_shape(shape)

    def flops(self, shape: Sequence[int]) -> int:
        return self.conv.flops(shape) + self.norm.flops(self.conv.output_shape(shape))

    def _check_parts(self) -> None:
        """Raises ParamError if the convolution does not return `output_dim` channels.

        Raises it, too, if `zero_init` is set and no part of the normalization can start at zero.
        """
        p = self.p
        *_, channels = self.conv.output_shape([1, *_LARGE_IMAGE, p.dim])
        if channels != p.output_dim:
            raise ParamError(
                f"{type(self.conv).__name__} makes {channels} channels of dim={p.dim}, not"
                f" output_dim={p.output_dim}"
            )
        if p.zero_init and not any("zero_init" in fields(type(n)) for n in self.norm.tree()):
            raise ParamError(
                f"zero_init=True, but no weight of {type(self.norm).__name__} can start at zero:"
                " take BatchNorm or GroupNorm"
            )

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if self.p.activation == "identity":
            return []
        shape, copies = self.output_shape(call.shape), ACTIVATION_COPIES[self.p.activation]
        return [
            batch_residual(copies - 1, shape, is_elementwise=True),
            # the next layer may keep the result, which can be computed from the norm's input
            batch_residual(0, shape, "output", is_elementwise=True),
        ]


def convolve_and_normalize(x: tf.Tensor, *, conv: Layer, norm: Norm) -> tf.Tensor:
    """Returns norm(conv(x)), [B, ..., F], for images or volumes x [B, ..., C].

    Outside training, a normalization with `takes_scale` gets `conv.result_scale`.
    """
    y = conv(x)
    if norm.takes_scale and not context.current().training:
        return norm(y, scale=conv.result_scale("w"))
    return norm(y)
