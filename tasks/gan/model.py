"""Small convolutional networks that make images from random vectors, and judge images.

    latents [B, Z] -> [B, H / 2, W / 2, 2 F] -> [B, H, W, F] -> images [B, H, W, C]
    images [B, H, W, C] -> [B, H / 2, W / 2, F] -> [B, H / 4, W / 4, 2 F] -> logits [B]

Axes: B batch, Z latent width, H height, W width, C channels of an image, F filters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Conv2D, Layer, Linear, TransposedConv2D
from lingo.layers.residual import Residual, ResidualCall, batch_residual
from lingo.layers.window import annotate_image

_SLOPE = 0.2  # of leaky ReLUs for negative inputs (Radford et al. 2016, sec. 3)


class Generator(Layer):
    """Makes an image of each random vector, with a transposed convolution (Radford et al. 2016).

    Departs from the paper: one doubling of height and width in place of four, as small images need
    it, and no batch norm, so that an image does not depend on the others of its batch.
    """

    latent_dim: int  # Z; the task offers it
    image_shape: tuple[int, int, int]  # (H, W, C); the task offers it
    num_filters: int = 32  # F
    hidden: Linear = Linear.params(use_bias=True)  # from latents to the first activations
    doubling: TransposedConv2D = TransposedConv2D.params(kernel=(4, 4), use_bias=True)
    last: Conv2D = Conv2D.params(use_bias=True)

    def check(self) -> None:
        ranges.check_positive(self.p, "latent_dim", "num_filters")
        _check_shape(self.p.image_shape, multiple=2)

    def setup(self) -> None:
        p = self.p
        self.hidden = p.hidden.build(dim=p.latent_dim, output_dim=math.prod(self._first_shape()))
        self.doubling = p.doubling.build(dim=2 * p.num_filters, output_dim=p.num_filters)
        self.last = p.last.build(dim=p.num_filters, output_dim=p.image_shape[-1])

    def __call__(self, latents: tf.Tensor) -> tf.Tensor:
        """Returns images, [B, H, W, C] in -1..1, in the layer's dtype, of latents [B, Z]."""
        x = tf.nn.relu(self.hidden(latents))
        x = annotate_image(tf.reshape(x, [-1, *self._first_shape()]))
        return tf.tanh(self.last(tf.nn.relu(self.doubling(x))))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the images of latents of shape [B, Z]."""
        return (shape[0], *self.p.image_shape)

    def flops(self, shape: Sequence[int]) -> int:
        first = (shape[0], *self._first_shape())
        large = self.doubling.output_shape(first)
        return self.hidden.flops(shape) + self.doubling.flops(first) + self.last.flops(large)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return [batch_residual(1, self.output_shape(call.shape), "output")]

    def _first_shape(self) -> tuple[int, int, int]:
        height, width, _ = self.p.image_shape
        return (height // 2, width // 2, 2 * self.p.num_filters)


class Discriminator(Layer):
    """Gives each image a logit: how much it looks like data (Radford et al. 2016, sec. 3)."""

    image_shape: tuple[int, int, int]  # (H, W, C); the task offers it
    num_filters: int = 32  # F
    conv: Conv2D = Conv2D.params(kernel=(5, 5), stride=2, use_bias=True)  # each convolution
    head: Linear = Linear.params(use_bias=True)

    def check(self) -> None:
        ranges.check_positive(self.p, "num_filters")
        _check_shape(self.p.image_shape, multiple=4)

    def setup(self) -> None:
        p, (height, width, channels) = self.p, self.p.image_shape
        self.convs = [
            p.conv.build(dim=channels, output_dim=p.num_filters),
            p.conv.build(dim=p.num_filters, output_dim=2 * p.num_filters),
        ]
        self.head = p.head.build(dim=height // 4 * (width // 4) * 2 * p.num_filters, output_dim=1)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits, [B], in the layer's dtype, of images x, [B, H, W, C] in -1..1."""
        for conv in self.convs:
            x = tf.nn.leaky_relu(conv(x), _SLOPE)
        return self.head(tf.reshape(x, [-1, self.head.p.dim]))[:, 0]

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the logits of images of shape [B, H, W, C]."""
        return (shape[0],)

    def flops(self, shape: Sequence[int]) -> int:
        total = 0
        for conv in self.convs:
            total, shape = total + conv.flops(shape), conv.output_shape(shape)
        return total + self.head.flops((shape[0], self.head.p.dim))

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # the gradient of a leaky ReLU reads its result, which is the next layer's input


def _check_shape(image_shape: tuple[int, int, int], *, multiple: int) -> None:
    """Raises ParamError unless height and width are positive multiples of `multiple`."""
    if any(size < 1 or size % multiple for size in image_shape[:2]) or image_shape[2] < 1:
        raise ParamError(
            f"image_shape={image_shape}: height and width have to be multiples of {multiple}"
        )
