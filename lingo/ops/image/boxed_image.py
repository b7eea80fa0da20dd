"""Crops, scales and mirrors images together with the boxes and masks of their objects.

A box is (top, left, bottom, right), as fractions of the image's height and width, and its label is
a class, 1 or more. Label 0 means that there is no box; its coordinates are zeros. A mask lies
inside its box: M x M bins, each 1 if the pixel at its centre belongs to the object. Each box keeps
its index in the arrays. All functions use NumPy.

Axes: H height, W width, C channels, N boxes, M bins of a mask along each side.
"""

from __future__ import annotations

import math
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
# least side of a clipped box / side of the part: a box that only touches the part is smaller,
# and by rounding not always empty
_LEAST_PART = 1e-5
_MAX_ASPECT = 2.0  # longer side / shorter side, each as a fraction of the image's side


class BoxedImage(NamedTuple):
    """An image with the boxes of its objects."""

    image: np.ndarray  # [H, W, C], uint8, or float32 in 0..1
    boxes: np.ndarray  # float32 [N, 4]
    labels: np.ndarray  # int32 [N]
    masks: np.ndarray | None = None  # uint8 [N, M, M], 0 or 1; None: no masks


def min_iou_crop(example: BoxedImage, key: random.Key, *, size: tuple[int, int]) -> BoxedImage:
    """Crops an image to a random part with objects, as for SSD, and resizes the part.

    Args:
        example: an image with N boxes.
        key: this image's random key.
        size: (height, width) of the result, in pixels.

    Returns:
        `image`, [*size, C] of the same type; `boxes` and `labels` as `crop_boxes` returns them,
        with `masks` of the boxes' parts.

    >>> image = np.zeros([100, 100, 1], np.uint8)
    >>> one = BoxedImage(image, np.array([[0.2, 0.2, 0.6, 0.6]], "f"), np.array([3], np.int32))
    >>> min_iou_crop(one, random.root_key(3), size=(50, 50)).labels
    array([3], dtype=int32)
    """
    image = example.image
    check_image(image)
    height, width = image.shape[:2]
    window = min_iou_box((height, width), example.boxes, example.labels, key)
    boxes, labels = crop_boxes(example.boxes, example.labels, window, (height, width))
    masks = _masks_of_parts(example, boxes, labels, window)
    return BoxedImage(resize(image[window.slices], size), boxes, labels, masks)


def scale_jitter(
    example: BoxedImage, key: random.Key, *, size: tuple[int, int], low: float, high: float
) -> BoxedImage:
    """Scales an image by a random factor, as for Mask R-CNN, and crops or pads the result.

    The image, made as large as fits into `size`, is scaled by a factor, uniform in low..high; the
    ratio of its sides stays. Of a larger image, a random part is shown. A smaller image has zeros
    below and on the right. A box is clipped to what is shown, and becomes absent if nothing of it
    is shown.

    Args:
        example: an image with N boxes.
        key: this image's random key.
        size: (height, width) of the result, in pixels.
        low: least factor, positive.
        high: largest factor; `low=high=1` fits the image into `size`.

    Returns:
        `image`, [*size, C] of the same type; `boxes` and `labels` as `clip_boxes` returns them,
        relative to `size`; `masks` inside these boxes.

    Raises:
        ValueError: if `example.image` is not an image, or unless 0 < low <= high.

    >>> one = BoxedImage(np.full([4, 8, 1], 9, "u1"), np.array([[0, 0, 1, 1]], "f"), np.array([3]))
    >>> result = scale_jitter(one, random.root_key(0), size=(4, 4), low=1, high=1)
    >>> result.image[..., 0].tolist(), result.boxes.tolist()
    ([[9, 9, 9, 9], [9, 9, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0]], [[0.0, 0.0, 0.5, 1.0]])
    """
    image = example.image
    check_image(image)
    whole = image.shape[:2]
    window, shown = jitter_window((whole[0], whole[1]), key, target=size, low=low, high=high)
    boxes, labels = clip_boxes(example.boxes, example.labels, window, (whole[0], whole[1]))
    masks = _masks_of_parts(example, boxes, labels, window)
    padded = np.zeros([*size, image.shape[2]], image.dtype)
    padded[: shown[0], : shown[1]] = resize(image[window.slices], shown)
    return BoxedImage(padded, scale_boxes(boxes, shown, size), labels, masks)


def flip_boxed(example: BoxedImage, key: random.Key, *, rate: float = 0.5) -> BoxedImage:
    """Mirrors an image, its boxes and masks left to right, with probability `rate`, as `flip` does.

    Raises ValueError if `example.image` is not an image, or the rate is out of range.

    >>> image = np.array([[[1], [2], [3], [4]]], np.uint8)
    >>> one = BoxedImage(image, np.array([[0, 0, 1, 0.25]], "f"), np.array([1], np.int32))
    >>> mirrored = flip_boxed(one, random.root_key(0), rate=1)
    >>> mirrored.image.ravel(), mirrored.boxes
    (array([4, 3, 2, 1], dtype=uint8), array([[0.  , 0.75, 1.  , 1.  ]], dtype=float32))
    """
    image = flip(example.image, key, rate=rate)
    if not is_mirrored(key, rate=rate):
        return example._replace(image=image)
    boxes, masks = flip_boxes(example.boxes, example.labels), example.masks
    masks = None if masks is None else masks[..., ::-1].copy()
    return BoxedImage(image, boxes, example.labels, masks)


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
    corners = _corners_in(boxes, window, size)
    middles = corners.mean(axis=1)
    return _clip_corners(corners, labels, ((middles >= 0) & (middles < 1)).all(axis=1))


def clip_boxes(
    boxes: np.ndarray, labels: np.ndarray, window: Box, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes and labels of a part of an image, as `crop_boxes` takes and returns them.

    A box stays, clipped to the part, if any of it is in the part; other boxes become absent.

    >>> clip_boxes(np.array([[0, 0, 1, 0.5]], "f"), np.array([1]), Box(0, 0, 2, 8), (10, 10))
    (array([[0.   , 0.   , 1.   , 0.625]], dtype=float32), array([1], dtype=int32))
    """
    corners = _corners_in(boxes, window, size)
    low, high = np.moveaxis(corners.clip(0, 1), 1, 0)
    is_seen = np.all(high - low > _LEAST_PART, axis=1)
    return _clip_corners(corners, labels, np.asarray(is_seen))


def _corners_in(boxes: np.ndarray, window: Box, size: tuple[int, int]) -> np.ndarray:
    """Returns boxes relative to a window of an image, float64 [N, 2 corners, 2 axes]."""
    first = np.array([window.row, window.column]) / size
    sides = np.array([window.height, window.width]) / size
    return (boxes.reshape(-1, 2, 2) - first) / sides


def _clip_corners(
    corners: np.ndarray, labels: np.ndarray, stays: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns clipped boxes, float32 [N, 4], and labels, int32 [N]; zeros unless `stays`, [N]."""
    stays = stays & (labels > 0)
    inside = np.where(stays[:, None], corners.clip(0, 1).reshape(-1, 4), 0)
    return inside.astype(np.float32), np.where(stays, labels, 0).astype(np.int32)


def scale_boxes(boxes: np.ndarray, shown: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Returns the boxes of an image relative to a larger picture, at whose upper left it is.

    Args:
        boxes: float32 [N, 4], as fractions of the image.
        shown: (height, width) of the image in the picture, in pixels.
        size: (height, width) of the picture.

    Returns:
        float32 [N, 4], as fractions of the picture.

    >>> scale_boxes(np.array([[0, 0.5, 1, 1]], "f"), (2, 4), (4, 4))
    array([[0. , 0.5, 0.5, 1. ]], dtype=float32)
    """
    return (boxes * (np.array(shown * 2) / np.array(size * 2))).astype(np.float32)


def jitter_window(
    size: tuple[int, int],
    key: random.Key,
    *,
    target: tuple[int, int],
    low: float,
    high: float,
    fit: tuple[int, int] | None = None,
) -> tuple[Box, tuple[int, int]]:
    """Returns the part of an image that `scale_jitter` shows, and its size in the result.

    Args:
        size: (height, width) of the image, in pixels.
        key: this image's random key.
        target: (height, width) of the result, in pixels.
        low: least factor, as in `scale_jitter`, like `high`.
        fit: (height, width) that the image just fits with a factor of 1; None: `target`.

    Raises ValueError unless 0 < low <= high.

    >>> jitter_window((40, 80), random.root_key(0), target=(20, 20), low=1, high=1)
    (Box(row=0, column=0, height=40, width=80), (10, 20))
    """
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{low=} and {high=} are not 0 < low <= high: factors of an image's size")
    factor, *places = draw(key, "scale_jitter", 3).tolist()
    height, width = fit or target
    scale = min(height / size[0], width / size[1]) * (low + (high - low) * factor)
    starts, sides, shown = [], [], []
    for whole, most, place in zip(size, target, places, strict=True):
        is_cut = whole * scale > most
        side = min(whole, max(1, round(most / scale))) if is_cut else whole
        starts.append(int(place * (whole - side + 1)))
        sides.append(side)
        shown.append(most if is_cut else max(1, round(whole * scale)))
    return Box(*starts, *sides), (shown[0], shown[1])


# ---- masks ---------------------------------------------------------------------------------------


def sample_mask(pixels: np.ndarray, box: np.ndarray, *, size: int) -> np.ndarray:
    """Returns the mask inside a box, uint8 [M, M]: the pixels at the centres of its bins.

    Args:
        pixels: [H, W], 0 or not, any type.
        box: [4], in pixels, any float type or int; outside of the image, a bin has the pixel of
            the rim that is nearest.
        size: M.

    >>> sample_mask(np.array([[0, 0, 0], [0, 1, 0]]), np.array([1, 0, 2, 3]), size=3)
    array([[0, 1, 0],
           [0, 1, 0],
           [0, 1, 0]], dtype=uint8)
    """
    places = (np.arange(size) + 0.5) / size
    top, left, bottom, right = np.asarray(box, np.float64)
    height, width = pixels.shape
    rows = np.floor(top + (bottom - top) * places).astype(np.int64).clip(0, height - 1)
    columns = np.floor(left + (right - left) * places).astype(np.int64).clip(0, width - 1)
    return (pixels[rows[:, None], columns] != 0).astype(np.uint8)


def _masks_of_parts(
    example: BoxedImage, boxes: np.ndarray, labels: np.ndarray, window: Box
) -> np.ndarray | None:
    """Returns the masks of boxes relative to a window, sampled from the example's; None: no masks.

    Boxes, float32 [N, 4], are relative to the window; masks are uint8 [N, M, M], 0 for label 0.
    """
    if example.masks is None:
        return None
    masks, size = np.zeros_like(example.masks), example.masks.shape[-1]
    whole = np.array(example.image.shape[:2])
    first, sides = np.array([window.row, window.column]), np.array([window.height, window.width])
    for i in np.flatnonzero(labels):
        own = example.boxes[i].astype(np.float64).reshape(2, 2)
        part = (first + boxes[i].astype(np.float64).reshape(2, 2) * sides) / whole
        inside = (part - own[0]) / (own[1] - own[0]) * size
        masks[i] = sample_mask(example.masks[i], inside.ravel(), size=size)
    return masks


# ---- parts with objects --------------------------------------------------------------------------


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
