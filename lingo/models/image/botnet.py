"""BoTNet: a ResNet whose last blocks see the whole image (Srinivas et al. 2021).

    Chain.params(layers=botnet(num_layers=50, num_classes=1000))

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.image_attention import ImageAttention, Positions
from lingo.layers.vision.pool import AveragePool, Pool
from lingo.models.image.resnet import STAGES, BottleneckBlock, Step, resnet


class AttentionNorm(Layer):
    """Attention over an image, average pooling (if it has a stride), normalization, and a ReLU."""

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    image: tuple[int, int]  # height and width of the input
    stride: int = 1  # how many times smaller the result is
    attention: ImageAttention = ImageAttention
    pool: Pool = AveragePool  # built with a stride of 2 or more
    norm: Norm = BatchNorm

    def check(self) -> None:
        ranges.check_positive(self.p, "stride")

    def setup(self) -> None:
        p = self.p
        self.attention = p.attention.build(dim=p.dim, output_dim=p.output_dim, image=p.image)
        if p.stride > 1:
            self.pool = p.pool.build(window=(p.stride, p.stride), stride=p.stride)
        self.norm = p.norm.build(dim=p.output_dim)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        y = self.attention(x)
        return tf.nn.relu(self.norm(self.pool(y) if self.p.stride > 1 else y))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        shape = self.attention.output_shape(shape)
        return self.pool.output_shape(shape) if self.p.stride > 1 else shape

    def flops(self, shape: Sequence[int]) -> int:
        total = self.attention.flops(shape)
        shape = self.attention.output_shape(shape)
        if self.p.stride > 1:
            total += self.pool.flops(shape)
            shape = self.pool.output_shape(shape)
        return total + self.norm.flops(shape)


class AttentionBlock(BottleneckBlock):
    """A bottleneck block with attention in place of its 3x3 convolution (Srinivas et al., fig. 1).

    A stride makes the image smaller after the attention, or before it with `version="v1"`.
    """

    image: tuple[int, int]  # height and width of the attention's input
    attention: AttentionNorm = AttentionNorm

    def build_step(self, dim: int, step: Step, *, is_last: bool) -> Layer:
        if step.window == 1:
            return super().build_step(dim, step, is_last=is_last)
        return self.p.attention.build(
            dim=dim, output_dim=step.output_dim, image=self.p.image, stride=step.stride
        )


def botnet(
    *,
    num_layers: int,
    num_classes: int,
    image_shape: tuple[int, int, int] = (224, 224, 3),
    stride: int = 2,
    attending: Sequence[int] | None = None,
    positions: Positions = "relative",
    zero_init: bool = True,
    small_images: bool = False,
    stem_stride: int = 1,
    width: int = 64,
) -> list[Params]:
    """Returns the layers of a BoTNet, in order: from images [B, H, W, C] to logits.

    They are a ResNet's layers, with attention in the blocks of the last stage. BoTNet-50 with 1000
    classes has 20,852,008 weights for images of 224 x 224. With a stride of 1 these are BoTNet-S1;
    weights, and multiply-adds of an image, here and as published:

        num_layers          59          77         110         128
        image              224         320         224         256
        weights     29,549,096  46,965,800  48,541,224  65,933,352
        published       33.5 M           -      54.7 M           -
        operations      7.23 G     23.23 G     10.94 G     19.25 G
        published        7.3 G           -      10.9 G           -

    Published weights include squeeze-and-excitation, which these blocks do not have. With it, in
    all blocks and a sixteenth of their channels wide, they would be 33.7 M and 54.9 M.

    Args:
        num_layers: 14, 50, 59, 77, 101, 110, 128 or 152, as in `resnet`.
        num_classes: number of labels.
        image_shape: (H, W, C) of the images.
        stride: how many times smaller the last stage makes an image: 2 or, for BoTNet-S1, 1.
        attending: indices of the last stage's blocks that have attention, from 0; None: all. The
            other blocks have the convolution of a ResNet.
        positions: of pixels, as the attention knows them: relative, absolute or none.
        zero_init: whether the last gamma of each block starts at zero.
        small_images: whether the stem is a 3x3 convolution, for images of a few pixels.
        stem_stride: how many times smaller the stem makes images if `small_images` is set.
        width: channels of the stem; the blocks have multiples of it.

    Raises:
        ParamError: if there is no such ResNet, or its blocks have no bottlenecks.
    """
    *layers, head = resnet(
        num_layers=num_layers,
        num_classes=num_classes,
        channels=image_shape[2],
        zero_init=zero_init,
        small_images=small_images,
        stem_stride=stem_stride,
        width=width,
    )
    num_blocks = _num_last_blocks(num_layers)
    attending = range(num_blocks) if attending is None else attending
    if outside := sorted(set(attending).difference(range(num_blocks))):
        raise ParamError(f"attending has {outside[0]}, but the last stage has {num_blocks} blocks")
    first = len(layers) - num_blocks
    layers[first].set(stride=stride)
    shape = (1, *image_shape)
    for i, layer in enumerate(layers):
        if i - first in attending:
            layers[i] = layer = AttentionBlock.params(
                dim=layer.dim,
                output_dim=layer.output_dim,
                stride=layer.stride,
                zero_init=zero_init,
                image=shape[1:3],
            )
            layer.attention.attention.positions = positions
        shape = layer.build().output_shape(shape)
    return [*layers, head]


def _num_last_blocks(num_layers: int) -> int:
    """Returns the number of blocks of the last stage; raises ParamError without bottlenecks."""
    block, stages = STAGES[num_layers]
    if block is not BottleneckBlock:
        known = [n for n, (kind, _) in STAGES.items() if kind is BottleneckBlock]
        raise ParamError(f"{num_layers=} has no bottlenecks: take one of {known}")
    return stages[-1]
