"""Crops and mirrors images, in NumPy.

Axes: B images, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.ops import random
from lingo.ops.image.box import Box, center_box, random_boxes
from lingo.ops.image.pixel import check_image, check_rate, check_size, draw
from lingo.ops.image.warp import Method, resize


def flip(image: np.ndarray, key: random.Key, *, rate: float = 0.5) -> np.ndarray:
    """Mirrors an image left to right, with probability `rate`.

    Args:
        image: [H, W, C].
        key: this image's random key.
        rate: in 0..1.

    >>> image = np.array([[[1], [2], [3]]], np.uint8)
    >>> flip(image, random.root_key(0), rate=1)[..., 0]
    array([[3, 2, 1]], dtype=uint8)
    """
    check_image(image)
    check_rate(rate)
    return image[:, ::-1].copy() if draw(key, "flip") < rate else image.copy()


def center_crop(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Crops the middle of an image.

    Args:
        image: [H, W, C].
        size: (height, width) of the result, in pixels, at most the image's. If an odd number of
            rows or columns is cut off, one more is cut off below or on the right.

    Returns:
        [*size, C] of the type of `image`.

    >>> center_crop(np.arange(5, dtype=np.uint8)[None, :, None], (1, 2))[..., 0]
    array([[1, 2]], dtype=uint8)
    """
    check_image(image)
    check_size(size)
    if size[0] > image.shape[0] or size[1] > image.shape[1]:
        raise ValueError(
            f"{size=} is larger than the image, {list(image.shape)}: resize it first"
            " (resize_short_side)"
        )
    return image[center_box((image.shape[0], image.shape[1]), size).slices].copy()


def pad_and_crop(image: np.ndarray, key: random.Key, *, padding: int) -> np.ndarray:
    """Moves an image by up to `padding` pixels in each direction (He et al. 2016a, sec. 4.2).

    The image is padded with black pixels, and a random part of its old size is cut out, as for
    CIFAR.

    Args:
        image: [H, W, C].
        key: this image's random key.
        padding: at least 0.

    >>> image = np.array([[[1], [2], [3]]], np.uint8)
    >>> pad_and_crop(image, random.root_key(1), padding=1)[..., 0]
    array([[1, 2, 3]], dtype=uint8)
    """
    check_image(image)
    if padding < 0:
        raise ValueError(f"{padding=} is negative")
    height, width = image.shape[:2]
    row, column = (draw(key, "pad_and_crop", 2) * (2 * padding + 1)).astype(int)
    around = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    return around[row : row + height, column : column + width].copy()


def inception_crop(
    image: np.ndarray,
    key: random.Key,
    *,
    size: tuple[int, int],
    min_area: float = 0.08,
    max_area: float = 1.0,
    max_aspect: float = 4 / 3,
    method: Method = "bilinear",
) -> np.ndarray:
    """Crops an image to a random rectangle, and resizes the result (Szegedy et al. 2015, sec. 6).

    Args:
        image: [H, W, C].
        key: this image's random key.
        size: (height, width) of the result, in pixels.
        min_area: least fraction of the image's area.
        max_area: largest fraction of the image's area.
        max_aspect: largest ratio of the longer to the shorter side.
        method: how pixels are interpolated.

    Returns:
        [*size, C] of the type of `image`.

    >>> image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    >>> inception_crop(image, random.root_key(2), size=(2, 2))[..., 0]
    array([[28, 30],
           [48, 50]], dtype=uint8)
    """
    check_image(image)
    height, width = image.shape[:2]
    limits = {"min_area": min_area, "max_area": max_area, "max_aspect": max_aspect}
    (box,) = inception_boxes([(height, width)], random.key_array([key]), **limits)
    return resize(image[box.slices], size, method=method)


def inception_boxes(
    sizes: Sequence[tuple[int, int]],
    keys: random.Key,
    *,
    min_area: float = 0.08,
    max_area: float = 1.0,
    max_aspect: float = 4 / 3,
) -> list[Box]:
    """Returns the rectangles that `inception_crop` cuts out of images.

    Each result is the first of ten random rectangles that fits. If none fits, it is the largest
    rectangle in the middle of the image with an allowed aspect ratio.

    Args:
        sizes: (height, width) of each image, [B].
        keys: one random key per image; its fields are [B].
        min_area: as in `inception_crop`, like `max_area` and `max_aspect`.

    Raises:
        ValueError: for areas or a ratio out of range.

    >>> inception_boxes([(300, 400)], random.key_array([random.root_key(0)]))
    [Box(row=112, column=76, height=158, width=146)]
    """
    limits = {"min_area": min_area, "max_area": max_area, "max_aspect": max_aspect}
    boxes = random_boxes(sizes, keys, name="inception_crop", **limits)
    return [
        _largest_box(size, max_aspect) if box is None else box
        for size, box in zip(sizes, boxes, strict=True)
    ]


def _largest_box(size: tuple[int, int], max_aspect: float) -> Box:
    height, width = size
    part = min(height, round(width * max_aspect)), min(width, round(height * max_aspect))
    return center_box(size, part)
