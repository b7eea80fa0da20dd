"""The heads of Mask R-CNN (He et al. 2017): for all anchors of a pyramid, and for single regions.

Axes: B batch, H height, W width, C channels, A anchors, R regions, S bins of a region along each
side, M bins of a mask along each side, K classes without the background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.layers.flops import new_tensor
from lingo.layers.initial import FanIn, Normal
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.residual import Residual, ResidualCall
from lingo.layers.vision.conv import Conv2D, TransposedConv2D
from lingo.ops.shape import size_of, sizes_of

Shape = Sequence[int]

_LOGITS = Normal.params(stddev=0.01)
_CODES = Normal.params(stddev=0.001)


class BoxOutputs(NamedTuple):
    """Codes of boxes and logits of classes, for anchors or for regions."""

    codes: Any  # of anchors [B, A, 4]; of regions [B, R, K + 1, 4], a box for each class
    # of anchors [B, A]: an object of any class; of regions [B, R, K + 1], class 0 is the background
    logits: Any


class RegionHead(Layer):
    """The head of a region proposal network (Ren et al. 2015, sec. 3.1), shared by all levels.

    A 3x3 convolution with a ReLU, then two 1x1 convolutions: for each of `num_shapes` anchors at a
    position, the logit of an object and the code of its box.
    """

    dim: int  # C, channels of the maps
    num_shapes: int = 3  # anchors at each position
    hidden_dim: int = 256  # channels after the 3x3 convolution
    conv: Conv2D = Conv2D.params(use_bias=True, init=_LOGITS)
    logits: Conv2D = Conv2D.params(use_bias=True, init=_LOGITS)
    codes: Conv2D = Conv2D.params(use_bias=True, init=_CODES)

    def setup(self) -> None:
        p = self.p
        self.conv = p.conv.build(dim=p.dim, output_dim=p.hidden_dim)
        one = {"dim": p.hidden_dim, "kernel": (1, 1)}
        self.logits = p.logits.build(output_dim=p.num_shapes, **one)
        self.codes = p.codes.build(output_dim=4 * p.num_shapes, **one)

    def __call__(self, maps: Sequence[tf.Tensor]) -> BoxOutputs:
        """Returns codes [B, A, 4] and logits [B, A] for maps [B, H, W, C], in the layer's dtype.

        Anchors are ordered by map, then by position (row by row), then by shape.
        """
        codes, logits = [], []
        for x in maps:
            hidden = tf.nn.relu(self.conv(x))
            codes.append(_flatten(self.codes(hidden), 4))
            logits.append(_flatten(self.logits(hidden), 1))
        return BoxOutputs(tf.concat(codes, 1), tf.squeeze(tf.concat(logits, 1), -1))

    def output_shape(self, shapes: Sequence[Shape]) -> BoxOutputs:
        """Returns the shapes of the results for maps of these shapes."""
        num = sum(math.prod(shape[1:3]) for shape in shapes) * self.p.num_shapes
        return BoxOutputs((shapes[0][0], num, 4), (shapes[0][0], num))

    def flops(self, shapes: Sequence[Shape]) -> int:
        total = 0
        for shape in shapes:
            hidden = self.conv.output_shape(shape)
            total += self.conv.flops(shape)
            total += self.logits.flops(hidden) + self.codes.flops(hidden)
        return total

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the codes and logits, and the inputs of all convolutions but for the first map.

        The convolutions themselves count one call, with the first map.
        """
        is_one = isinstance(call.shape[0], int)
        shapes: Any = (call.shape,) if is_one else call.shape
        outputs = self.output_shape(shapes)
        later = [tuple(shape) for shape in shapes[1:]]
        axes = ("batch", "height", "width", None)
        return [
            Residual(1, outputs.codes, ("batch", None, None)),
            Residual(2, outputs.logits, ("batch", None)),
            *(Residual(1, shape, axes) for shape in later),
            *(Residual(1, (*shape[:3], self.p.hidden_dim), axes) for shape in later),
        ]


class BoxHead(Layer):
    """Classifies regions and moves their boxes: two dense layers with ReLUs (He et al. 2017)."""

    dim: int  # C, channels of the regions
    num_classes: int  # K
    size: int = 7  # S
    hidden_dim: int = 1024  # width of both dense layers
    linear: Linear = Linear.params(use_bias=True, init=FanIn.params(scale=2.0), axes=(None, None))
    logits: Linear = Linear.params(use_bias=True, init=_LOGITS, axes=(None, None))
    codes: Linear = Linear.params(use_bias=True, init=_CODES, axes=(None, None))

    def check(self) -> None:
        ranges.check_positive(self.p, "num_classes", "size", "hidden_dim")

    def setup(self) -> None:
        p = self.p
        self.hidden = [
            p.linear.build(dim=dim, output_dim=p.hidden_dim)
            for dim in (p.size**2 * p.dim, p.hidden_dim)
        ]
        self.logits = p.logits.build(dim=p.hidden_dim, output_dim=p.num_classes + 1)
        self.codes = p.codes.build(dim=p.hidden_dim, output_dim=4 * (p.num_classes + 1))

    def __call__(self, x: tf.Tensor) -> BoxOutputs:
        """Returns codes [B, R, K + 1, 4] and logits [B, R, K + 1] for regions [B, R, S, S, C]."""
        num_regions = size_of(x, 1)
        y = tf.reshape(x, [-1, num_regions, self.p.size**2 * self.p.dim])
        for layer in self.hidden:
            y = tf.nn.relu(layer(y))
        codes = tf.reshape(self.codes(y), [-1, num_regions, self.p.num_classes + 1, 4])
        return BoxOutputs(codes, self.logits(y))

    def output_shape(self, shape: Shape) -> BoxOutputs:
        """Returns the shapes of the results for regions of shape [B, R, S, S, C]."""
        logits = (*shape[:2], self.p.num_classes + 1)
        return BoxOutputs((*logits, 4), logits)

    def flops(self, shape: Shape) -> int:
        shape = new_tensor((*shape[:2], math.prod(shape[2:])))
        total = 0
        for layer in self.hidden:
            total += layer.flops(shape)
            shape = layer.output_shape(shape)
        return total + self.logits.flops(shape) + self.codes.flops(shape)

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the codes, the logits, and the softmax of the logits."""
        codes, logits = self.output_shape(call.shape)
        return [
            Residual(1, codes, ("batch", None, None, None)),
            Residual(2, logits, ("batch", None, None)),
        ]


class MaskHead(Layer):
    """Draws a mask of each class inside each region (He et al. 2017, fig. 4, right).

    3x3 convolutions, a transposed one that doubles the size, each with a ReLU, then a 1x1
    convolution. M is 2 S.
    """

    dim: int  # C, channels of the regions
    num_classes: int  # K
    size: int = 14  # S
    hidden_dim: int = 256  # channels of all convolutions
    num_convs: int = 4  # 3x3 convolutions
    conv: Conv2D = Conv2D.params(use_bias=True)
    deconv: TransposedConv2D = TransposedConv2D.params(kernel=(2, 2), use_bias=True)
    logits: Conv2D = Conv2D.params(use_bias=True, init=FanIn)

    def check(self) -> None:
        ranges.check_positive(self.p, "num_classes", "size", "hidden_dim", "num_convs")

    def setup(self) -> None:
        p = self.p
        dims = [p.dim, *[p.hidden_dim] * (p.num_convs - 1)]
        self.convs = [p.conv.build(dim=dim, output_dim=p.hidden_dim) for dim in dims]
        self.deconv = p.deconv.build(dim=p.hidden_dim, output_dim=p.hidden_dim)
        self.logits = p.logits.build(dim=p.hidden_dim, output_dim=p.num_classes + 1, kernel=(1, 1))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns logits [B, R, M, M, K + 1], in the layer's dtype, for regions [B, R, S, S, C]."""
        _, num_regions, *region = sizes_of(x)
        y = tf.reshape(x, [-1, *region])
        for layer in (*self.convs, self.deconv):
            y = tf.nn.relu(layer(y))
        y = self.logits(y)
        return tf.reshape(y, [-1, num_regions, *sizes_of(y)[1:]])

    def output_shape(self, shape: Shape) -> tuple[int, ...]:
        """Returns the shape of the result for regions of shape [B, R, S, S, C]."""
        mask = self.deconv.output_shape((1, *shape[2:4], self.p.hidden_dim))
        return (*shape[:2], *mask[1:3], self.p.num_classes + 1)

    def flops(self, shape: Shape) -> int:
        shape, total = new_tensor((math.prod(shape[:2]), *shape[2:])), 0
        for layer in (*self.convs, self.deconv, self.logits):
            total += layer.flops(shape)
            shape = layer.output_shape(shape)
        return total

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        """Returns the logits."""
        shape = self.output_shape(call.shape)
        return [Residual(1, shape, ("batch", None, None, None, None))]


def _flatten(x: tf.Tensor, size: int) -> tf.Tensor:
    """Reshapes a head's result, [B, H', W', C'], to `size` values per anchor: [B, A', size]."""
    _, *sizes = sizes_of(x)
    return tf.reshape(x, [-1, math.prod(sizes) // size, size])
