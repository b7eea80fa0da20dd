"""EfficientNet (Tan and Le 2019): one network, made wider and deeper by rules.

    Chain.params(layers=efficientnet(SCALINGS["b0"], num_classes=1000))

Axes: B batch, H height, W width, C input channels, F output channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.dropout import StochasticDepth, check_rate
from lingo.layers.layer import Layer
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.layers.vision.conv import DepthwiseConv2D
from lingo.layers.vision.conv_norm import ConvNorm
from lingo.layers.vision.image_head import ImageHead
from lingo.layers.vision.squeeze_excite import SqueezeExcite
from lingo.ops.activations import Activation


class MBConv(Layer):
    """The inverted bottleneck of MobileNetV2 (Sandler et al. 2018, sec. 3.3) and EfficientNet.

    A 1x1 convolution widens the image to `expansion` * C channels, a depthwise convolution with the
    stride follows, then squeeze-and-excitation, and a 1x1 convolution to F channels without an
    activation. Each convolution is normalized. If the result has the shape of x, x is added.
    """

    dim: int  # C, channels of the input
    output_dim: int  # F, channels of the output
    kernel: tuple[int, int] = (3, 3)  # window of the depthwise convolution
    stride: int = 1  # how many times smaller the result is
    expansion: int = 6  # channels in the middle / C; 1: there is no first convolution
    activation: Activation = "silu"  # after the first two convolutions
    drop_path_rate: float = 0.0  # probability that an example keeps only x
    unit: ConvNorm = ConvNorm  # the 1x1 convolutions
    depthwise: ConvNorm = ConvNorm.params(conv=DepthwiseConv2D)
    squeeze_excite: SqueezeExcite = SqueezeExcite
    drop_path: StochasticDepth = StochasticDepth

    def check(self) -> None:
        ranges.check_positive(self.p, "expansion")
        check_rate("drop_path_rate", self.p.drop_path_rate)

    def setup(self) -> None:
        p, dim = self.p, self.p.dim * self.p.expansion
        units = {"kernel": (1, 1), "stride": 1}
        self.expand = None
        if p.expansion > 1:
            self.expand = p.unit.build(dim=p.dim, output_dim=dim, activation=p.activation, **units)
        self.depthwise = p.depthwise.build(
            dim=dim, output_dim=dim, kernel=p.kernel, stride=p.stride, activation=p.activation
        )
        self.squeeze_excite = p.squeeze_excite.build(dim=dim, block_dim=p.dim)
        self.project = p.unit.build(
            dim=dim, output_dim=p.output_dim, activation="identity", **units
        )
        self.drop_path = p.drop_path.build(rate=p.drop_path_rate)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', F], in the layer's dtype, for images x [B, H, W, C]."""
        x = tf.cast(x, self.p.dtype)
        y = self.expand(x) if self.expand else x
        y = self.project(self.squeeze_excite(self.depthwise(y)))
        adds_input = self.p.stride == 1 and self.p.dim == self.p.output_dim
        return x + self.drop_path(y) if adds_input else y

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for images of shape [B, H, W, C]."""
        return (*self.depthwise.output_shape(shape)[:-1], self.p.output_dim)

    def flops(self, shape: Sequence[int]) -> int:
        total = 0
        for layer in (self.expand, self.depthwise, self.squeeze_excite, self.project):
            if layer:
                total += layer.flops(shape)
                shape = layer.output_shape(shape)
        return total


class Scaling(NamedTuple):
    """How an EfficientNet differs from B0."""

    width: float = 1.0  # factor of channels
    depth: float = 1.0  # factor of blocks
    image_size: int = 224  # height and width of the images that the network is meant for
    dropout_rate: float = 0.2  # before the logits


SCALINGS = {
    "b0": Scaling(1.0, 1.0, 224, 0.2),
    "b1": Scaling(1.0, 1.1, 240, 0.2),
    "b2": Scaling(1.1, 1.2, 260, 0.3),
    "b3": Scaling(1.2, 1.4, 300, 0.3),
    "b4": Scaling(1.4, 1.8, 380, 0.4),
    "b5": Scaling(1.6, 2.2, 456, 0.4),
    "b6": Scaling(1.8, 2.6, 528, 0.5),
    "b7": Scaling(2.0, 3.1, 600, 0.5),
}
"""The published scalings (github.com/tensorflow/tpu, models/official/efficientnet)."""


class Stage(NamedTuple):
    """Blocks of one kind; only the first has the stride."""

    num_blocks: int
    output_dim: int
    window: int
    stride: int
    expansion: int


STAGES = (
    Stage(1, 16, window=3, stride=1, expansion=1),
    Stage(2, 24, window=3, stride=2, expansion=6),
    Stage(2, 40, window=5, stride=2, expansion=6),
    Stage(3, 80, window=3, stride=2, expansion=6),
    Stage(3, 112, window=5, stride=1, expansion=6),
    Stage(4, 192, window=5, stride=2, expansion=6),
    Stage(1, 320, window=3, stride=1, expansion=6),
)
"""The stages of B0 (Tan and Le 2019, table 1)."""


def round_channels(channels: float) -> int:
    """Returns the nearest multiple of 8 that is at least 8 and at least 90 % of the number.

    >>> [round_channels(n) for n in (3, 12, 19.2, 35.2)]
    [8, 16, 24, 32]
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def efficientnet(
    scaling: Scaling,
    *,
    num_classes: int,
    channels: int = 3,
    drop_path_rate: float = 0.2,
) -> list[Params]:
    """Returns the layers of an EfficientNet, in order: from images [B, H, W, C] to logits.

    They are a 3x3 convolution of stride 2, the blocks of seven stages, a 1x1 convolution and the
    head. The batch norms have the published decay, 0.99, and epsilon, 1e-3. Numbers of weights with
    1000 classes, and of operations for images of the size in `SCALINGS` (a multiply-add counts as
    two):

                         b0         b1         b2          b3          b4          b5
        weights   5,288,548  7,794,184  9,109,994  12,233,232  19,341,616  30,389,784
        operations   0.77 G     1.37 G     1.99 G      3.65 G      8.79 G     20.53 G

    Args:
        scaling: width, depth and dropout; `SCALINGS` has B0 to B7.
        num_classes: number of labels.
        channels: C, the channels of the images.
        drop_path_rate: block i of n, from i = 0, has the rate drop_path_rate * i / n (Huang et al.
            2016, sec. 3).
    """
    dim = round_channels(32 * scaling.width)
    stem = ConvNorm.params(dim=channels, output_dim=dim, stride=2, activation="silu")
    blocks: list[Params] = []
    for stage in STAGES:
        output_dim = round_channels(stage.output_dim * scaling.width)
        for i in range(math.ceil(stage.num_blocks * scaling.depth)):
            block = MBConv.params(
                dim=dim,
                output_dim=output_dim,
                kernel=(stage.window, stage.window),
                stride=stage.stride if i == 0 else 1,
                expansion=stage.expansion,
            )
            blocks.append(block)
            dim = output_dim
    for i, block in enumerate(blocks):
        block.drop_path_rate = drop_path_rate * i / len(blocks)
    top_dim = round_channels(1280 * scaling.width)
    top = ConvNorm.params(dim=dim, output_dim=top_dim, kernel=(1, 1), activation="silu")
    head = ImageHead.params(dim=top_dim, num_classes=num_classes, dropout_rate=scaling.dropout_rate)
    for layer in (stem, *blocks, top):
        layer.all(BatchNorm).set(decay=0.99, epsilon=1e-3)
    return [stem, *blocks, top, head]
