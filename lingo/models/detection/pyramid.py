"""Maps of several sizes from any image network, and the feature pyramid over them.

    Backbone.params(layers=resnet(num_layers=50, num_classes=1)[:-1])  # maps of levels 2 to 5

A map of level l has a position for 2^l x 2^l pixels.

Axes: B batch, H height, W width, C channels, F channels of the pyramid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.flops import new_tensor, passes_tensors
from lingo.layers.initial import FanIn
from lingo.layers.layer import Layer
from lingo.layers.norm import Norm
from lingo.layers.vision.conv import Conv2D
from lingo.layers.vision.pool import MaxPool
from lingo.layers.window import annotate_image, is_split, static_sizes
from lingo.ops.shape import size_of

Shape = Sequence[int]  # [B, H, W, C]


class Backbone(Layer):
    """The maps that an image network computes on its way, one for each level (Lin et al. 2017a).

    The map of a level is the last one of its size: the result of the last block of a stage. So any
    list of layers that make images smaller will do, such as a ResNet, a BoTNet or an EfficientNet
    without its head. Layers need `output_shape` and `flops`, as in a `Chain`.
    """

    layers: list[Layer]  # in order, without the classifier
    first_level: int = 2  # the level of the first map that is returned

    def setup(self) -> None:
        self.layers = [layer.build() for layer in self.p.layers]

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns maps [B, H', W', C'] of rising levels for images x [B, H, W, C]."""
        lasts = self._lasts([1, *static_sizes(x), size_of(x, -1)])
        maps = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i in lasts:
                maps.append(x)
        return tuple(maps)

    @passes_tensors
    def output_shape(self, shape: Shape) -> tuple[Any, ...]:
        """Returns the shapes of all maps for images of shape [B, H, W, C]."""
        lasts, shapes = self._lasts(tuple(shape)), []
        for i, layer in enumerate(self.layers):
            shape = layer.output_shape(shape)
            if i in lasts:
                shapes.append(shape)
        return tuple(shapes)

    def flops(self, shape: Shape) -> int:
        total = 0
        for layer in self.layers:
            total += layer.flops(shape)
            shape = layer.output_shape(shape)
        return total

    def _lasts(self, shape: Shape) -> list[int]:
        """Returns the index of the layer that makes each map, for images of a shape.

        Raises ParamError if a layer's result is not an image, or a level from the first to the last
        is missing.
        """
        height, found = shape[1], dict[int, int]()
        for i, layer in enumerate(self.layers):
            shape = layer.output_shape(tuple(shape))
            if len(shape) != 4:
                raise ParamError(
                    f"layers[{i}] makes {list(shape)} of the images: a backbone ends before the"
                    " network's head, as in resnet(...)[:-1]"
                )
            found[round(math.log2(height / shape[1]))] = i
        first, last = self.p.first_level, max(found, default=0)
        if missing := [level for level in range(first, last + 1) if level not in found]:
            raise ParamError(
                f"no layer's result has level {missing[0]}, an image / 2^{missing[0]}; the levels"
                f" are {sorted(found)}, and first_level={first}"
            )
        if first > last:
            raise ParamError(f"first_level={first}, but the last level of the layers is {last}")
        return [found[level] for level in range(first, last + 1)]


class FeaturePyramid(Layer):
    """Maps of equal width; each also has the content of higher levels (Lin et al. 2017a, fig. 3).

    Each map goes through a 1x1 convolution; the sum of the level above, enlarged two times, is
    added; a 3x3 convolution makes the result. `num_extra` more maps follow, each with every second
    row and column of the one before. There are no activation functions.
    """

    dims: tuple[int, ...]  # channels of the maps; a detector passes its backbone's
    output_dim: int = 256  # F
    num_extra: int = 1  # maps above the last level
    lateral: Conv2D = Conv2D.params(use_bias=True, init=FanIn)  # the 1x1 convolutions
    conv: Conv2D = Conv2D.params(use_bias=True, init=FanIn)  # the 3x3 convolutions
    norm: Norm | None = None  # after each 3x3 convolution; None: no normalization
    subsample: MaxPool = MaxPool  # built with windows of one position, which makes the extra maps

    def check(self) -> None:
        ranges.check_positive(self.p, "dims", "output_dim")
        ranges.check_not_negative(self.p, "num_extra")

    def setup(self) -> None:
        p = self.p
        self.laterals = [
            p.lateral.build(dim=dim, output_dim=p.output_dim, kernel=(1, 1)) for dim in p.dims
        ]
        self.convs = [p.conv.build(dim=p.output_dim, output_dim=p.output_dim) for _ in p.dims]
        self.norms = [p.norm.build(dim=p.output_dim) for _ in p.dims] if p.norm else []
        self.subsample = p.subsample.build(window=(1, 1), stride=2)

    def __call__(self, maps: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """Returns maps [B, H, W, F], in the layer's dtype, for maps [B, H, W, C] of rising levels.

        Each map is half as high and wide as the one before, rounded up.
        """
        total, results = None, []
        for i in reversed(range(len(maps))):
            own = self.laterals[i](maps[i])
            total = own if total is None else own + enlarge(total, static_sizes(own))
            y = self.convs[i](total)
            results.insert(0, self.norms[i](y) if self.norms else y)
        for _ in range(self.p.num_extra):
            results.append(self.subsample(results[-1]))
        return tuple(results)

    def output_shape(self, shapes: Sequence[Shape]) -> tuple[Any, ...]:
        """Returns the shapes of the results for maps of these shapes."""
        results = [conv.output_shape(shape) for conv, shape in self._conv_shapes(shapes)]
        for _ in range(self.p.num_extra):
            results.append(self.subsample.output_shape(results[-1]))
        return tuple(results)

    def flops(self, shapes: Sequence[Shape]) -> int:
        total = 0
        for lateral, shape in zip(self.laterals, shapes, strict=True):
            total += lateral.flops(shape)
        for i, (conv, shape) in enumerate(self._conv_shapes(shapes)):
            total += conv.flops(shape)
            if self.norms:
                total += self.norms[i].flops(conv.output_shape(shape))
        return total

    def _conv_shapes(self, shapes: Sequence[Shape]) -> list[tuple[Layer, Any]]:
        """Returns each 3x3 convolution with the shape of its input."""
        sums = [new_tensor((*shape[:3], self.p.output_dim)) for shape in shapes]
        return list(zip(self.convs, sums, strict=True))


def enlarge(x: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Doubles rows and columns of maps [B, H, W, C], and cuts the result to `size`, (H', W')."""
    height, width = size
    if not is_split(x):
        return tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)[:, :height, :width]
    # by matrices, as `Resize`: each device computes its share
    for equation, axis, length in (("bhwc,ih->biwc", 1, height), ("bhwc,jw->bhjc", 2, width)):
        twice = np.arange(length)[:, None] // 2 == np.arange(static_sizes(x)[axis - 1])
        x = tf.einsum(equation, x, tf.constant(twice, x.dtype))
    return annotate_image(x)
