"""Squeeze-and-excitation: scales an image's channels by factors computed from all channels' means.

Axes: B batch, H height, W width, C channels, R reduced channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.ops.activations import Activation, activate


class SqueezeExcite(Layer):
    """x * sigmoid(f(mean(x) w_reduce + b_reduce) w_expand + b_expand) (Hu et al. 2018, sec. 3).

    The mean is over all positions. R is `block_dim` times `ratio`, rounded down, but at least 1. In
    EfficientNet, f is silu, and `block_dim` is the number of channels of the block's input, which
    has fewer channels than x.
    """

    dim: int  # C, channels of x
    block_dim: int | None = None  # channels that `ratio` multiplies; None: `dim`
    ratio: float = 0.25  # R divided by `block_dim`
    activation: Activation = "silu"  # f
    # the two maps, to R channels and back
    linear: Linear = Linear.params(use_bias=True, axes=(None, None))

    def check(self) -> None:
        ranges.check_positive(self.p, "block_dim", "ratio")

    def setup(self) -> None:
        p = self.p
        block_dim = p.dim if p.block_dim is None else p.block_dim
        self.reduced_dim = max(1, int(block_dim * p.ratio))
        self.reduce = p.linear.build(dim=p.dim, output_dim=self.reduced_dim)
        self.expand = p.linear.build(dim=self.reduced_dim, output_dim=p.dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H, W, C], in the layer's dtype, for images x [B, H, W, C]."""
        x = tf.cast(x, self.p.dtype)
        mean = tf.reduce_mean(x, axis=[1, 2], keepdims=True)
        return x * tf.sigmoid(self.expand(activate(self.reduce(mean), self.p.activation)))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return tuple(shape)

    def flops(self, shape: Sequence[int]) -> int:
        batch, *_, channels = shape
        return self.reduce.flops([batch, channels]) + self.expand.flops([batch, self.reduced_dim])

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, call.shape, "input")]
