"""Mask R-CNN (He et al. 2017) over a feature pyramid: proposals with a class, a box and a mask.

    trunk = Backbone.params(layers=resnet(num_layers=50, num_classes=1)[:-1])
    MaskRcnn.params(trunk=trunk)

Axes: B batch, H height, W width, C channels, A anchors, R regions, M bins of a mask along each
side, K classes without the background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import annotate
from lingo.layers.layer import Layer
from lingo.models.detection.heads import BoxHead, BoxOutputs, MaskHead, RegionHead
from lingo.models.detection.pyramid import FeaturePyramid
from lingo.ops.boxes import AnchorMap, anchor_boxes
from lingo.ops.roi_align import CropForm, roi_align


class PyramidOutputs(NamedTuple):
    """The first stage's results for images."""

    maps: Any  # a tuple of maps, [B, H', W', C] each, of rising levels
    codes: Any  # [B, A, 4], the boxes of regions relative to anchors
    logits: Any  # [B, A], of an object at the anchor


class MaskRcnn(Layer):
    """The networks of Mask R-CNN with a feature pyramid (He et al. 2017; Lin et al. 2017a).

    A call computes the pyramid and, for each anchor, a region with its logit. `classify` and
    `segment` compute the second stage for regions, which a task chooses. At each position of a map
    of level l, the anchors are a square with a side of `anchor_scale` * 2^l pixels and, for each of
    the `ratios`, a wide and a tall rectangle of the same area, which may exceed the image.
    """

    image_shape: tuple[int, int, int]  # (H, W, C); a task passes its own
    num_classes: int  # K, without the background; a task passes its own
    trunk: Layer  # makes a tuple of maps of rising levels, as `Backbone`; has `output_shape`
    pyramid: FeaturePyramid = FeaturePyramid
    region_head: RegionHead = RegionHead
    box_head: BoxHead = BoxHead
    mask_head: MaskHead = MaskHead
    anchor_scale: float = 8.0  # side of the square anchor, in positions of its map
    ratios: tuple[float, ...] = (2.0,)  # aspect ratios of oblong anchors
    num_region_maps: int | None = None  # the first maps, from which regions are cut; None: all
    crop_form: CropForm = "center"  # where regions sample their map
    crop_samples: int = 1  # points of a region's bin along each side
    base_side: float = 224.0  # pixels: side of a square region of level 4; half of it: of level 3

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "num_classes", "anchor_scale", "ratios", "crop_samples")
        ranges.check_positive(p, "base_side", "num_region_maps")

    def setup(self) -> None:
        p = self.p
        self.trunk = p.trunk.build()
        shapes = self.trunk.output_shape((1, *p.image_shape))
        self.pyramid = p.pyramid.build(dims=tuple(shape[-1] for shape in shapes))
        dim = self.pyramid.p.output_dim
        self.region_head = p.region_head.build(dim=dim, num_shapes=1 + 2 * len(p.ratios))
        self.box_head = p.box_head.build(dim=dim, num_classes=p.num_classes)
        self.mask_head = p.mask_head.build(dim=dim, num_classes=p.num_classes)
        if self.region_head.p.num_shapes != 1 + 2 * len(p.ratios):
            raise ParamError(
                f"region_head.num_shapes={self.region_head.p.num_shapes}, but a position has"
                f" {1 + 2 * len(p.ratios)} anchors with ratios={p.ratios}: leave it unset"
            )
        if p.num_region_maps is not None and p.num_region_maps > len(self._map_shapes()):
            raise ParamError(
                f"num_region_maps={p.num_region_maps}, but the pyramid has"
                f" {len(self._map_shapes())} maps"
            )

    def __call__(self, x: tf.Tensor) -> PyramidOutputs:
        """Returns the first stage's outputs, in the layer's dtype, for images [B, H, W, C]."""
        maps = self.pyramid(self.trunk(x))
        codes, logits = self.region_head(maps)
        return PyramidOutputs(
            maps, annotate(codes, "batch", None, None), annotate(logits, "batch", None)
        )

    def classify(self, maps: Sequence[tf.Tensor], boxes: tf.Tensor) -> BoxOutputs:
        """Returns codes [B, R, K + 1, 4] and logits [B, R, K + 1] of regions.

        `maps` are the pyramid's, `boxes` float32 [B, R, 4], in 0..1 of the image.
        """
        return self.box_head(self._cut(maps, boxes, size=self.box_head.p.size))

    def segment(self, maps: Sequence[tf.Tensor], boxes: tf.Tensor) -> tf.Tensor:
        """Returns the logits of masks inside regions, [B, R, M, M, K + 1].

        `maps` are the pyramid's, `boxes` float32 [B, R, 4], in 0..1 of the image.
        """
        return self.mask_head(self._cut(maps, boxes, size=self.mask_head.p.size))

    def anchors(self) -> np.ndarray:
        """Returns the anchors, float32 [A, 4]: (top, left, bottom, right) in 0..1 of the image.

        Anchors are ordered by map, then by position (row by row), then by shape: the square, then
        for each ratio the wide and the tall one.
        """
        p = self.p
        maps = []
        for level, (_, rows, columns, _) in enumerate(self._map_shapes(), self._first_level()):
            step = 2.0**level
            scale = p.anchor_scale * step
            maps.append(
                AnchorMap((rows, columns), (step, step), scale, None, p.ratios, is_limited=False)
            )
        return anchor_boxes(maps, image=p.image_shape[:2])

    def level_sizes(self) -> list[int]:
        """Returns the number of anchors of each map."""
        num = 1 + 2 * len(self.p.ratios)
        return [num * math.prod(shape[1:3]) for shape in self._map_shapes()]

    def output_shape(self, shape: Sequence[int]) -> PyramidOutputs:
        """Returns the shapes of the results of a call for images of shape [B, H, W, C]."""
        maps = self.pyramid.output_shape(self.trunk.output_shape(shape))
        return PyramidOutputs(maps, *self.region_head.output_shape(maps))

    def flops(self, shape: Sequence[int]) -> int:
        """Returns the operations of a call, the first stage, for images of shape [B, H, W, C]."""
        maps = self.trunk.output_shape(shape)
        total = self.trunk.flops(shape) + self.pyramid.flops(maps)
        return total + self.region_head.flops(self.pyramid.output_shape(maps))

    def region_flops(self, batch: int, *, num_boxes: int, num_masks: int) -> int:
        """Returns the operations of the second stage for numbers of regions of each image."""
        dim, total = self.pyramid.p.output_dim, 0
        for head, num in ((self.box_head, num_boxes), (self.mask_head, num_masks)):
            total += head.flops((batch, num, head.p.size, head.p.size, dim))
        return total

    def _cut(self, maps: Sequence[tf.Tensor], boxes: tf.Tensor, *, size: int) -> tf.Tensor:
        """Returns the features of regions, [B, R, size, size, C]."""
        p = self.p
        # any device may need any row of its images
        whole = [annotate(x, "batch", None, None, None) for x in maps[: p.num_region_maps]]
        return roi_align(
            whole,
            boxes,
            size=size,
            image=p.image_shape[:2],
            min_level=self._first_level(),
            samples=p.crop_samples,
            form=p.crop_form,
            base_side=p.base_side,
        )

    def _map_shapes(self) -> list[tuple[int, ...]]:
        """Returns the shapes of the pyramid's maps, [1, H', W', C], for one image."""
        return list(self.pyramid.output_shape(self.trunk.output_shape((1, *self.p.image_shape))))

    def _first_level(self) -> int:
        return round(math.log2(self.p.image_shape[0] / self._map_shapes()[0][1]))
