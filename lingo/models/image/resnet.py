"""Residual networks of convolutions (He et al. 2016).

    Chain.params(layers=resnet(num_layers=50, num_classes=1000))

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.layer import Layer
from lingo.layers.product import Product
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.vision.conv_norm import ConvNorm
from lingo.layers.vision.image_head import ImageHead
from lingo.layers.vision.pool import MaxPool

WIDENING = 4  # the channels of a bottleneck's result / the channels in its middle

Version = Literal["v1", "v1.5"]
"""Where a bottleneck that halves the image has its stride: in the first 1x1 convolution, as in the
paper (v1), or in the 3x3 convolution (v1.5), which leaves out no position."""


class Step(NamedTuple):
    """A convolution of a residual branch."""

    output_dim: int  # channels of its result
    window: int  # height and width of its window
    stride: int = 1


class ResNetBlock(Layer, interface=True):
    """relu(shortcut(x) + branch(x)) (He et al. 2016, sec. 3.2). Subclasses define `steps`.

    The branch is normalized convolutions with ReLUs between them. The shortcut is the identity or,
    where the branch changes the shape, a normalized 1x1 convolution (option B of the paper).
    """

    dim: int  # channels of the input
    output_dim: int  # channels of the output
    stride: int = 1  # how many times smaller the result is
    zero_init: bool = False  # whether the branch first adds nothing (Goyal et al. 2017, sec. 5.1)
    unit: ConvNorm = ConvNorm  # the convolutions; the last has a gamma of zeros with `zero_init`

    products = (Product("sum", ("branch", "shortcut"), has_weight=False, is_sum=True),)

    def steps(self) -> list[Step]:
        """Returns the convolutions of the branch, in order."""
        raise NotImplementedError(f"{type(self).__name__} has no steps")

    def build_step(self, dim: int, step: Step, *, is_last: bool) -> Layer:
        """Returns the layer of a step, for an input of `dim` channels."""
        return self.p.unit.build(
            dim=dim,
            output_dim=step.output_dim,
            kernel=(step.window, step.window),
            stride=step.stride,
            activation="identity" if is_last else "relu",
            zero_init=self.p.zero_init and is_last,
        )

    def setup(self) -> None:
        p, steps = self.p, self.steps()
        dims = [p.dim, *[step.output_dim for step in steps]]
        last = len(steps) - 1
        self.branch = [
            self.build_step(dims[i], step, is_last=i == last) for i, step in enumerate(steps)
        ]
        self.shortcut = None
        if p.stride > 1 or p.dim != p.output_dim:
            self.shortcut = p.unit.build(
                dim=p.dim,
                output_dim=p.output_dim,
                kernel=(1, 1),
                stride=p.stride,
                activation="identity",
            )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        y = x = tf.cast(x, self.p.dtype)
        for unit in self.branch:
            y = unit(y)
        shortcut = self.shortcut(x) if self.shortcut else x
        y, shortcut = self.operands("sum", branch=y, shortcut=shortcut)
        return tf.nn.relu(y + shortcut)

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        for unit in self.branch:
            shape = unit.output_shape(shape)
        return tuple(shape)

    def flops(self, shape: Sequence[int]) -> int:
        total = self.shortcut.flops(shape) if self.shortcut else 0
        for unit in self.branch:
            total += unit.flops(shape)
            shape = unit.output_shape(shape)
        return total

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        return []  # the next layer counts this block's result


class BasicBlock(ResNetBlock):
    """A block of two 3x3 convolutions; the first has the stride."""

    def steps(self) -> list[Step]:
        p = self.p
        return [Step(p.output_dim, 3, p.stride), Step(p.output_dim, 3)]


class BottleneckBlock(ResNetBlock):
    """A block of a 1x1 convolution to F / 4 channels, a 3x3 convolution, and a 1x1 one to F."""

    version: Version = "v1.5"  # which convolution has the stride

    def check(self) -> None:
        if self.p.output_dim % WIDENING:
            raise ParamError(
                f"output_dim={self.p.output_dim} is not a multiple of {WIDENING}, as a bottleneck"
                " needs"
            )

    def steps(self) -> list[Step]:
        p, narrow = self.p, self.p.output_dim // WIDENING
        first, middle = (p.stride, 1) if p.version == "v1" else (1, p.stride)
        return [Step(narrow, 1, first), Step(narrow, 3, middle), Step(p.output_dim, 1)]


STAGES = {
    14: (BottleneckBlock, (1, 1, 2)),
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (BottleneckBlock, (3, 4, 6, 3)),
    59: (BottleneckBlock, (3, 4, 6, 6)),
    77: (BottleneckBlock, (3, 4, 6, 12)),
    101: (BottleneckBlock, (3, 4, 23, 3)),
    110: (BottleneckBlock, (3, 4, 23, 6)),
    128: (BottleneckBlock, (3, 4, 23, 12)),
    152: (BottleneckBlock, (3, 8, 36, 3)),
}
"""Number of layers -> the block, and the number of blocks per stage (He et al. 2016, table 1).

The network of 14 layers and three stages is not in the paper; it is for images of a few pixels.
Networks of 59, 77, 110 and 128 layers have the stages of BoTNet-S1 (Srinivas et al. 2021).
"""


def resnet(
    *,
    num_layers: int,
    num_classes: int,
    channels: int = 3,
    version: Version = "v1.5",
    zero_init: bool = False,
    small_images: bool = False,
    stem_stride: int = 1,
    width: int = 64,
) -> list[Params]:
    """Returns the layers of a ResNet, in order: from images [B, H, W, C] to logits.

    They are the stem, the blocks of four stages with 64, 128, 256 and 512 channels (four times as
    many with bottlenecks), and the head. The first block of each stage but the first halves the
    image. Numbers of weights with 1000 classes, and of operations for images of 224 x 224 pixels (a
    multiply-add counts as two):

        num_layers                18          34          50         101         152
        weights           11,689,512  21,797,672  25,557,032  44,549,160  60,192,808
        operations, v1        3.63 G      7.33 G      7.72 G     15.14 G     22.56 G
        operations, v1.5      3.63 G      7.33 G      8.18 G     15.60 G     23.03 G

    Convolutions have no bias. SAME padding adds to the end of an image first, as in TensorFlow, so
    that windows of stride 2 lie elsewhere than in PyTorch if height or width is even. In PyTorch
    they lie as with `padding="CENTERED"` of all `Conv2D` and `MaxPool`.

    Args:
        num_layers: a key of `STAGES`.
        num_classes: number of labels.
        channels: C, the channels of the images.
        version: which convolution of a bottleneck has the stride; nothing else differs.
        zero_init: whether the last gamma of each block starts at zero.
        small_images: whether the stem is a 3x3 convolution, for images of a few pixels. The stem
            for ImageNet is a 7x7 convolution and a 3x3 maximum, each of stride 2.
        stem_stride: how many times smaller the stem makes images if `small_images` is set.
        width: channels of the stem; the blocks have multiples of it.

    Raises:
        ParamError: if there is no such ResNet.
    """
    if num_layers not in STAGES:
        raise ParamError(f"{num_layers=} is not one of {', '.join(map(str, STAGES))}")
    block, stages = STAGES[num_layers]
    widening, versions = (1, {}) if block is BasicBlock else (WIDENING, {"version": version})
    if small_images:
        layers: list[Params] = [ConvNorm.params(dim=channels, output_dim=width, stride=stem_stride)]
    else:
        stem = ConvNorm.params(dim=channels, output_dim=width, kernel=(7, 7), stride=2)
        layers = [stem, MaxPool.params(window=(3, 3), stride=2)]
    dim = width
    for stage, num_blocks in enumerate(stages):
        output_dim = width * 2**stage * widening
        for i in range(num_blocks):
            stride = 2 if stage > 0 and i == 0 else 1
            fields = {"dim": dim, "output_dim": output_dim, "stride": stride, **versions}
            layers.append(block.params(zero_init=zero_init, **fields))
            dim = output_dim
    return [*layers, ImageHead.params(dim=dim, num_classes=num_classes)]
