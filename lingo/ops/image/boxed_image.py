"""Crops and mirrors images together with the boxes of their objects.

A box is (top, left, bottom, right), as fractions of the image's height and width, and its label is
a class, 1 or more. Label 0 means that there is no box; its coordinates are zeros. Each box keeps
its index in the arrays. All functions use NumPy.

Axes: H height, W width, C channels, N boxes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.ops import random
from lingo.ops.image.box import Box
from lingo.ops.image.crop import flip
from lingo.ops.image.pixel import check_image, check_rate, draw
from lingo.ops.image.warp import resize

_LEAST_IOUS = (None, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)  # None: the whole image
_TRIES = 50
_LEAST_SIDE = 0.3  # least square root of (a part's area / the image's area)
_MAX_ASPECT = 2.0  # longer side / shorter side, each as a fraction of the image's side


class BoxedImage(NamedTuple):
    """An image with the boxes of its objects."""

    image: np.ndarray  # [H, W, C], uint8, or float32 in 0..1
    boxes: np.ndarray  # float32 [N, 4]
    labels: np.ndarray  # int32 [N]


def min_iou_crop(example: BoxedImage, key: random.Key, *, size: tuple[int, int]) -> BoxedImage:
    """Crops an image to a random part with objects, as for SSD, and resizes the part.

    Args:
        example: an image with N boxes.
        key: this image's random key.
        size: (height, width) of the result, in pixels.

    Returns:
        `image`, [*size, C] of the same type; `boxes` and `labels` as `crop_boxes` returns them.

    >>> image = np.zeros([100, 100, 1], np.uint8)
    >>> one = BoxedImage(image, np.array([[0.2, 0.2, 0.6, 0.6]], "f"), np.array([3], np.int32))
    >>> min_iou_crop(one, random.root_key(3), size=(50, 50)).labels
    array([3], dtype=int32)
    """
    image, boxes, labels = example
    check_image(image)
    height, width = image.shape[:2]
    window = min_iou_box((height, width), boxes, labels, key)
    boxes, labels = crop_boxes(boxes, labels, window, (height, width))
    return BoxedImage(resize(image[window.slices], size), boxes, labels)


def flip_boxed(example: BoxedImage, key: random.Key, *, rate: float = 0.5) -> BoxedImage:
    """Mirrors an image and its boxes left to right, with probability `rate`, as `flip` does.

    Raises ValueError if `example.image` is not an image, or the rate is out of range.

    >>> image = np.array([[[1], [2], [3], [4]]], np.uint8)
    >>> one = BoxedImage(image, np.array([[0, 0, 1, 0.25]], "f"), np.array([1], np.int32))
    >>> image, boxes, _ = flip_boxed(one, random.root_key(0), rate=1)
    >>> image.ravel(), boxes
    (array([4, 3, 2, 1], dtype=uint8), array([[0.  , 0.75, 1.  , 1.  ]], dtype=float32))
    """
    image = flip(example.image, key, rate=rate)
    boxes = example.boxes
    if is_mirrored(key, rate=rate):
        boxes = flip_boxes(boxes, example.labels)
    return BoxedImage(image, boxes, example.labels)


def is_mirrored(key: random.Key, *, rate: float) -> bool:
    """Returns whether `flip` mirrors a key's image; raises ValueError for a rate not in 0..1.

    >>> is_mirrored(random.root_key(0), rate=0.0)
    False
    """
    check_rate(rate)
    return bool(draw(key, "flip") < rate)


def flip_boxes(boxes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mirrors boxes, float32 [N, 4], left to right; absent boxes, with label 0, stay zeros.

    >>> flip_boxes(np.array([[0, 0.25, 1, 0.5], [0, 0, 0, 0]], "f"), np.array([1, 0]))
    array([[0.  , 0.5 , 1.  , 0.75],
           [0.  , 0.  , 0.  , 0.  ]], dtype=float32)
    """
    top, left, bottom, right = boxes.T
    mirrored = np.stack([top, 1 - right, bottom, 1 - left], -1)
    return np.where((labels > 0)[:, None], mirrored, 0).astype(np.float32)


def crop_boxes(
    boxes: np.ndarray, labels: np.ndarray, window: Box, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes and labels of a part of an image.

    A box stays, clipped to the part, if its middle is in the part (Liu et al. 2016, sec. 2.2);
    other boxes become absent.

    Args:
        boxes: float32 [N, 4], in 0..1 of the image.
        labels: int32 [N].
        window: the part, in pixels.
        size: (height, width) of the image, in pixels.

    Returns:
        Boxes, float32 [N, 4] in 0..1 of the part, and labels, int32 [N].

    >>> crop_boxes(np.array([[0, 0, 0.5, 0.5]], "f"), np.array([1], "i"), Box(0, 0, 5, 8), (10, 10))
    (array([[0.   , 0.   , 1.   , 0.625]], dtype=float32), array([1], dtype=int32))
    """
    first = np.array([window.row, window.column]) / size
    sides = np.array([window.height, window.width]) / size
    corners = (boxes.reshape(-1, 2, 2) - first) / sides  # [N, 2 corners, 2 axes]
    middles = corners.mean(axis=1)
    stays = (labels > 0) & ((middles >= 0) & (middles < 1)).all(axis=1)
    inside = np.where(stays[:, None], corners.clip(0, 1).reshape(-1, 4), 0)
    return inside.astype(np.float32), np.where(stays, labels, 0).astype(np.int32)


def min_iou_box(
    size: tuple[int, int], boxes: np.ndarray, labels: np.ndarray, key: random.Key
) -> Box:
    """Returns the part of an image that `min_iou_crop` cuts out (Liu et al. 2016, sec. 2.2).

    One of seven choices, all equally likely, is drawn: the whole image, any part, or a part whose
    intersection over union with an object is at least 0.1, 0.3, 0.5, 0.7 or 0.9. A part has 0.09 to
    1 of the image's area. The ratio of its sides, each as a fraction of the image's side, is in
    1/2..2, as in the authors' program. Unlike in their program, a part contains the middle of an
    object. The result is the first of 50 random parts that meets all these conditions, or the whole
    image if none does.

    Args:
        size: (height, width) of the image, in pixels.
        boxes: float32 [N, 4], in 0..1.
        labels: int32 [N]; label 0 marks an absent box.
        key: this image's random key.

    >>> one = np.array([[0.2, 0.2, 0.6, 0.6]], "f"), np.array([1], "i")
    >>> min_iou_box((300, 400), *one, random.root_key(3))
    Box(row=7, column=23, height=290, width=372)
    """
    height, width = size
    whole = Box(0, 0, height, width)
    objects = boxes[labels > 0].astype(np.float64)
    choice = float(draw(key, "min_iou_crop.choice"))
    least = _LEAST_IOUS[int(choice * len(_LEAST_IOUS))]
    if least is None or not len(objects):
        return whole
    windows = _random_windows(size, key)
    corners = windows[:, :2] + windows[:, 2:]
    parts = np.concatenate([windows[:, :2], corners], 1) / [height, width, height, width]
    middles = (objects[:, :2] + objects[:, 2:]) / 2
    has_middle = ((middles >= parts[:, None, :2]) & (middles < parts[:, None, 2:])).all(-1).any(-1)
    meets = has_middle & (_ious(parts, objects).max(1) >= least)
    return Box(*windows[meets.argmax()].tolist()) if meets.any() else whole


def _random_windows(size: tuple[int, int], key: random.Key) -> np.ndarray:
    """Returns random parts of an image in pixels, int64 [tries, 4]: row, column, height, width."""
    scale, aspect, down, right = draw(key, "min_iou_crop", _TRIES, 4).T
    scale = _LEAST_SIDE + (1 - _LEAST_SIDE) * scale
    low, high = np.maximum(1 / _MAX_ASPECT, scale**2), np.minimum(_MAX_ASPECT, 1 / scale**2)
    root = np.sqrt(low + (high - low) * aspect)
    sides = np.stack([scale / root, scale * root], 1)
    pixels = np.rint(sides * size).astype(np.int64).clip(1, size)
    corners = (np.stack([down, right], 1) * (np.array(size) - pixels + 1)).astype(np.int64)
    return np.concatenate([corners, pixels], 1)


def _ious(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of each pair of boxes, float64 [P, N]."""
    first = first[:, None]
    sides = np.minimum(first[..., 2:], second[:, 2:]) - np.maximum(first[..., :2], second[:, :2])
    shared = sides.clip(0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (first, second)]
    return shared / (areas[0] + areas[1] - shared)
