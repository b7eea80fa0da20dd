"""Rectangles in images: areas, overlaps, and how they are coded relative to anchors.

A box is (top, left, bottom, right), in parts of the height and width of its image.

Axes: B batch, N boxes, A anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.lazy import tf

CENTER_VARIANCE, SIZE_VARIANCE = 0.1, 0.2
"""What codes are divided by, so that both halves have about unit variance (Liu et al. 2016)."""


def box_areas(boxes: tf.Tensor) -> tf.Tensor:
    """Returns the areas of boxes, [...], for boxes [..., 4], any float type; 0 of empty ones.

    >>> box_areas(tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.4, 1.0]])).numpy()
    array([0.25, 0.  ], dtype=float32)
    """
    top, left, bottom, right = tf.unstack(boxes, axis=-1)
    return tf.maximum(bottom - top, 0) * tf.maximum(right - left, 0)


def box_overlaps(boxes: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the intersection over union of each box with each other one (Jaccard overlap).

    Args:
        boxes: [..., N, 4], any float type.
        others: [..., A, 4], the same type; leading axes broadcast.

    Returns:
        [..., N, A], 0..1; 0 where both boxes are empty.

    >>> both = tf.constant([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0]])
    >>> box_overlaps(both, both).numpy()
    array([[1. , 0.5],
           [0.5, 1. ]], dtype=float32)
    """
    top, left, bottom, right = tf.unstack(tf.expand_dims(boxes, -2), axis=-1)
    others_in_row = tf.expand_dims(others, -3)
    other_top, other_left, other_bottom, other_right = tf.unstack(others_in_row, axis=-1)
    height = tf.minimum(bottom, other_bottom) - tf.maximum(top, other_top)
    width = tf.minimum(right, other_right) - tf.maximum(left, other_left)
    common = tf.maximum(height, 0) * tf.maximum(width, 0)
    areas = tf.expand_dims(box_areas(boxes), -1) + tf.expand_dims(box_areas(others), -2)
    return tf.math.divide_no_nan(common, areas - common)


def encode_boxes(boxes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns boxes relative to anchors (Girshick et al. 2014, app. C; Liu et al. 2016, eq. 2).

    Args:
        boxes: [..., A, 4], any float type, none of them empty.
        anchors: [A, 4], the same type, the anchor of each box.

    Returns:
        [..., A, 4]: the distance of the centres, down and right, in sizes of the anchor, divided by
        0.1; and the logarithm of the ratio of heights, and of widths, divided by 0.2.

    >>> anchor, box = [[0.0, 0.0, 0.5, 0.5]], [[0.25, 0.0, 0.75, 0.5]]
    >>> encode_boxes(tf.constant(box), tf.constant(anchor)).numpy().round(3)
    array([[5., 0., 0., 0.]], dtype=float32)
    """
    center, size = _center_and_size(boxes)
    anchor_center, anchor_size = _center_and_size(anchors)
    shift = (center - anchor_center) / (anchor_size * CENTER_VARIANCE)
    return tf.concat([shift, tf.math.log(size / anchor_size) / SIZE_VARIANCE], axis=-1)


def decode_boxes(codes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns the boxes [..., A, 4] whose codes `encode_boxes` returns; any float type.

    >>> anchors = tf.constant([[0.0, 0.0, 0.5, 0.5]])
    >>> codes = encode_boxes(tf.constant([[0.25, 0.0, 0.5, 1.0]]), anchors)
    >>> decode_boxes(codes, anchors).numpy().round(3)
    array([[0.25, 0.  , 0.5 , 1.  ]], dtype=float32)
    """
    anchor_center, anchor_size = _center_and_size(anchors)
    shift, ratio = tf.split(codes, 2, axis=-1)
    center = anchor_center + shift * CENTER_VARIANCE * anchor_size
    half = 0.5 * anchor_size * tf.exp(ratio * SIZE_VARIANCE)
    return tf.concat([center - half, center + half], axis=-1)


def _center_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns centres and sizes, both [..., 2] as (down, right), of boxes [..., 4]."""
    low, high = tf.split(boxes, 2, axis=-1)
    return 0.5 * (low + high), high - low


class AnchorMap(NamedTuple):
    """The anchors at all positions of one map of features. Lengths are pixels of the image."""

    size: tuple[int, int]  # height and width of the map
    step: tuple[float, float]  # from one position to the next, down and right
    scale: float  # side of the square anchor
    next_scale: float  # that of the next map: another square has the geometric mean of the two
    ratios: Sequence[float]  # of the sides of oblong anchors, each wide and tall

    @property
    def num_shapes(self) -> int:
        """How many anchors each position has."""
        return 2 + 2 * len(self.ratios)


def anchor_boxes(maps: Sequence[AnchorMap], *, image: tuple[int, int]) -> np.ndarray:
    """Returns the anchors of all maps, float32 [A, 4] (Liu et al. 2016, sec. 2.2).

    Maps follow each other, in each map positions by rows, and at each position its shapes: the two
    squares, then of each ratio r a wide and a tall one of sides scale * sqrt(r), scale / sqrt(r).
    No anchor is larger than the image, of `image` pixels in height and width, or has its centre
    outside of it, which is moved to the border; anchors reach over the border.

    >>> one = AnchorMap(size=(1, 1), step=(4, 4), scale=2, next_scale=8, ratios=[])
    >>> anchor_boxes([one], image=(4, 4))
    array([[0.25, 0.25, 0.75, 0.75],
           [0.  , 0.  , 1.  , 1.  ]], dtype=float32)
    """
    boxes = []
    for one in maps:
        between = np.sqrt(one.scale * one.next_scale)
        shapes = [(one.scale, one.scale), (between, between)]
        for root in np.sqrt(one.ratios):
            wide = (one.scale / root, one.scale * root)
            shapes += [wide, wide[::-1]]
        halves = np.minimum(np.array(shapes) / image, 1.0) / 2
        rows, columns = ((np.arange(n) + 0.5) * s for n, s in zip(one.size, one.step, strict=True))
        centers = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1) / image
        centers = np.minimum(centers, 1.0)[:, :, None]
        low, high = centers - halves, centers + halves
        boxes.append(np.concatenate([low, high], axis=-1).reshape(-1, 4))
    return np.concatenate(boxes).astype(np.float32)
