"""SSD, the single-shot detector (Liu et al. 2016): boxes and classes for anchors on several maps.

    Ssd.params(trunk=resnet34_trunk(), extras=ssd300_extras(), num_classes=80, **SSD300)

Axes: B batch, H height, W width, C channels, A anchors, K classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.initial import FanIn
from lingo.layers.layer import Layer
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.stacks.stack import Chain
from lingo.layers.vision.conv import Conv2D
from lingo.layers.window import Padding
from lingo.models.image.resnet import STAGES, resnet
from lingo.ops.boxes import AnchorMap, anchor_boxes
from lingo.ops.shape import sizes_of


class AnchorOutputs(NamedTuple):
    """A detector's outputs for the anchors of images, in the order of `Ssd.anchors`."""

    codes: Any  # [B, A, 4], the boxes relative to anchors (`lingo.ops.boxes`)
    logits: Any  # [B, A, K + 1]; class 0 is the background


class ExtraMap(Layer):
    """relu(conv3x3(relu(conv1x1(x)))): makes a smaller feature map (Liu et al. 2016, fig. 2).

    Convolutions have a bias and no normalization.
    """

    dim: int  # channels of the input
    hidden_dim: int  # channels between the two convolutions
    output_dim: int  # channels of the output
    stride: int = 2  # of the second convolution
    padding: Padding = "SAME"  # of the second convolution; VALID makes a map smaller by 2
    conv: Conv2D = Conv2D.params(use_bias=True)

    def setup(self) -> None:
        p = self.p
        self.reduce = p.conv.build(dim=p.dim, output_dim=p.hidden_dim, kernel=(1, 1))
        self.shrink = p.conv.build(
            dim=p.hidden_dim, output_dim=p.output_dim, stride=p.stride, padding=p.padding
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, H', W', output_dim], in the layer's dtype, for x [B, H, W, C]."""
        return tf.nn.relu(self.shrink(tf.nn.relu(self.reduce(x))))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the result for maps of shape [B, H, W, C]."""
        return self.shrink.output_shape(self.reduce.output_shape(shape))

    def flops(self, shape: Sequence[int]) -> int:
        return self.reduce.flops(shape) + self.shrink.flops(self.reduce.output_shape(shape))


class Ssd(Layer):
    """A detector that predicts a box and a class for each anchor at all positions of several maps.

    The trunk makes the first map; each extra layer makes the next map from the one before. Two 3x3
    convolutions per map give the codes of the boxes and the logits of the classes.
    """

    image_shape: tuple[int, int, int]  # (H, W, C); a task passes its own
    num_classes: int  # K, without the background; a task passes its own
    trunk: Layer  # makes the first map from images; has `output_shape`
    extras: list[Layer] = []  # each makes the next map; has `output_shape`
    scales: tuple[float, ...]  # pixels: side of each map's square anchor, and one side more
    ratios: tuple[tuple[float, ...], ...]  # for each map, the aspect ratios of oblong anchors
    steps: tuple[float, ...] | None = None  # pixels between positions; None: H / H', W / W'
    head: Conv2D = Conv2D.params(use_bias=True, init=FanIn.params())

    def check(self) -> None:
        p, num_maps = self.p, 1 + len(self.p.extras)
        ranges.check_positive(p, "num_classes", "scales", "steps")
        for ratio in itertools.chain(*p.ratios):
            if ratio <= 0:
                raise ParamError(f"ratios={p.ratios}: {ratio} is not positive")
        lengths = {"scales": num_maps + 1, "ratios": num_maps, "steps": num_maps}
        for field, length in lengths.items():
            values = getattr(p, field)
            if values is not None and len(values) != length:
                raise ParamError(
                    f"{field} has {len(values)} entries, but the trunk and {len(p.extras)} extras"
                    f" make {num_maps} maps, which need {length}"
                )

    def setup(self) -> None:
        p = self.p
        self.trunk = p.trunk.build()
        self.extras = [extra.build() for extra in p.extras]
        shapes, maps = self._map_shapes([1, *p.image_shape]), self._anchor_maps()
        pairs = [(shape[-1], grid.num_shapes) for shape, grid in zip(shapes, maps, strict=True)]
        self.box_heads = [p.head.build(dim=dim, output_dim=4 * num) for dim, num in pairs]
        self.class_heads = [
            p.head.build(dim=dim, output_dim=(p.num_classes + 1) * num) for dim, num in pairs
        ]

    def __call__(self, x: tf.Tensor) -> AnchorOutputs:
        """Returns all anchors' codes and logits, in the layer's dtype, for images [B, H, W, C]."""
        x, codes, logits = self.trunk(x), [], []
        for i, (box_head, class_head) in enumerate(
            zip(self.box_heads, self.class_heads, strict=True)
        ):
            x = self.extras[i - 1](x) if i else x
            codes.append(_flatten(box_head(x), 4))
            logits.append(_flatten(class_head(x), self.p.num_classes + 1))
        return AnchorOutputs(tf.concat(codes, axis=1), tf.concat(logits, axis=1))

    def anchors(self) -> np.ndarray:
        """Returns the anchors, float32 [A, 4]: (top, left, bottom, right) in 0..1 of the image.

        Anchors are ordered by map, then by position (row by row), then by shape.
        """
        return anchor_boxes(self._anchor_maps(), image=self.p.image_shape[:2])

    def output_shape(self, shape: Sequence[int]) -> AnchorOutputs:
        """Returns the shapes of the results for images of shape [B, H, W, C]."""
        num = len(self.anchors())
        return AnchorOutputs((shape[0], num, 4), (shape[0], num, self.p.num_classes + 1))

    def flops(self, shape: Sequence[int]) -> int:
        layers = zip((self.trunk, *self.extras), self.box_heads, self.class_heads, strict=True)
        total = 0
        for layer, box_head, class_head in layers:
            total += layer.flops(shape)
            shape = layer.output_shape(shape)
            total += box_head.flops(shape) + class_head.flops(shape)
        return total

    def _map_shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the shapes of all maps, [B, H', W', C'], for images of a shape."""
        shapes = []
        for layer in (self.trunk, *self.extras):
            shape = layer.output_shape(shape)
            shapes.append(tuple(shape))
        return shapes

    def _anchor_maps(self) -> list[AnchorMap]:
        p = self.p
        height, width, _ = p.image_shape
        maps = []
        for i, (_, rows, columns, _) in enumerate(self._map_shapes([1, *p.image_shape])):
            step = (p.steps[i],) * 2 if p.steps else (height / rows, width / columns)
            small, large = p.scales[i : i + 2]
            maps.append(AnchorMap((rows, columns), step, small, large, p.ratios[i]))
        return maps

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the anchors' codes, their logits, and the softmax of the logits."""
        codes, logits = self.output_shape(call.shape)
        names = ("batch", None, None)
        return [Residual(1, codes, names), Residual(2, logits, names)]


def _flatten(x: tf.Tensor, size: int) -> tf.Tensor:
    """Reshapes a head's result, [B, H', W', C'], to `size` values per anchor: [B, A', size]."""
    _, *sizes = sizes_of(x)
    return tf.reshape(x, [-1, math.prod(sizes) // size, size])


# ---- SSD300 with ResNet-34, as in MLPerf training 0.5 to 1.1 -------------------------------------

SSD300 = {
    "scales": (21.0, 45.0, 99.0, 153.0, 207.0, 261.0, 315.0),
    "ratios": ((2.0,), (2.0, 3.0), (2.0, 3.0), (2.0, 3.0), (2.0,), (2.0,)),
    "steps": (8.0, 16.0, 32.0, 64.0, 100.0, 300.0),
}
"""8,732 anchors for images of 300 x 300 pixels, on maps of 38, 19, 10, 5, 3 and 1 rows."""


def resnet34_trunk() -> Params:
    """Returns ResNet-34 up to its stage of 256 channels, whose stride is 1: 300 rows become 38."""
    _, stages = STAGES[34]
    first = 2 + sum(stages[:2])  # the stem, its pool and two stages come before
    layers = resnet(num_layers=34, num_classes=1)[: first + stages[2]]
    layers[first].set(stride=1)
    return Chain.params(layers=layers)


def ssd300_extras() -> list[Params]:
    """Returns the layers that make maps of 19, 10, 5, 3 and 1 rows from the map of 38 rows."""
    dims = (256, 512, 512, 256, 256, 256)
    hidden_dims = (256, 256, 128, 128, 128)
    extras = [
        ExtraMap.params(dim=dims[i], hidden_dim=hidden_dims[i], output_dim=dims[i + 1])
        for i in range(5)
    ]
    for extra in extras[3:]:
        extra.set(stride=1, padding="VALID")
    return extras
