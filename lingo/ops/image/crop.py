"""Parts of images, and mirrored images.

They are views of arrays and a few random numbers: NumPy.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lingo.ops import random
from lingo.ops.image.pixel import check_image, check_size, draw
from lingo.ops.image.scale import Method, resize

_TRIES = 10


class Box(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def flip(image: np.ndarray, key: random.Key, *, rate: float = 0.5) -> np.ndarray:
    """Mirrors an image left to right, with probability `rate`.

    Args:
        image: [H, W, C], uint8, or float32 in 0..1; any number of channels.
        key: of this image.
        rate: in 0..1.

    Returns:
        The shape and type of `image`.

    Raises:
        ValueError: if it is not an image.

    >>> image = np.array([[[1], [2], [3]]], np.uint8)
    >>> flip(image, random.root_key(0), rate=1)[..., 0]
    array([[3, 2, 1]], dtype=uint8)
    """
    check_image(image)
    return image[:, ::-1].copy() if draw(key, "flip") < rate else image.copy()


def center_crop(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Crops the middle of an image.

    Args:
        image: [H, W, C], uint8, or float32 in 0..1; any number of channels.
        size: (height, width) of the result, in pixels, at most those of the image. An odd row or
            column too many is left out below or on the right.

    Returns:
        [*size, C] of the type of `image`.

    Raises:
        ValueError: if it is not an image, or is smaller than the result.

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
    return _cut(image, _center_box(image.shape[0], image.shape[1], *size))


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
    """Crops a random rectangle and resizes it (Szegedy et al. 2015, sec. 6).

    Args:
        image: [H, W, C], uint8, or float32 in 0..1; any number of channels.
        key: of this image.
        size: (height, width) of the result, in pixels.
        min_area: least part of the image's area.
        max_area: largest part of it.
        max_aspect: the longer side of the rectangle has at most this ratio to the shorter one.
        method: how pixels are interpolated.

    Returns:
        [*size, C] of the type of `image`.

    Raises:
        ValueError: if it is not an image, or for areas, a ratio, a size or a method out of range.

    >>> image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    >>> inception_crop(image, random.root_key(2), size=(2, 2))[..., 0]
    array([[28, 30],
           [48, 50]], dtype=uint8)
    """
    check_image(image)
    height, width = image.shape[:2]
    box = inception_box(
        (height, width), key, min_area=min_area, max_area=max_area, max_aspect=max_aspect
    )
    return resize(_cut(image, box), size, method=method)


def inception_box(
    size: tuple[int, int],
    key: random.Key,
    *,
    min_area: float = 0.08,
    max_area: float = 1.0,
    max_aspect: float = 4 / 3,
) -> Box:
    """Returns the rectangle that `inception_crop` cuts out of an image of some size.

    Its area is uniform in a range, the logarithm of the ratio of its sides, too. The first of ten
    draws counts that fits into the image. If none does, it is the largest rectangle in the middle
    of the image whose ratio is allowed.

    Args:
        size: (height, width) of the image.
        key: of this image.
        min_area: as of `inception_crop`, likewise the others.

    Raises:
        ValueError: for areas or a ratio out of range.

    >>> inception_box((300, 400), random.root_key(0))
    Box(top=112, left=76, height=158, width=146)
    """
    if not 0 < min_area <= max_area <= 1:
        raise ValueError(f"{min_area=} and {max_area=} are not 0 < min_area <= max_area <= 1")
    if not 1 <= max_aspect < math.inf:
        raise ValueError(f"{max_aspect=} is below 1: it is the longer side by the shorter one")
    height, width = size
    for area, aspect, down, right in draw(key, "inception_crop", _TRIES, 4).tolist():
        pixels = height * width * (min_area + (max_area - min_area) * area)
        ratio = max_aspect ** (2 * aspect - 1)  # of width to height
        rows, columns = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 1 <= rows <= height and 1 <= columns <= width:
            top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
            return Box(top, left, rows, columns)
    rows, columns = min(height, round(width * max_aspect)), min(width, round(height * max_aspect))
    return _center_box(height, width, rows, columns)


def _center_box(height: int, width: int, rows: int, columns: int) -> Box:
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


def _cut(image: np.ndarray, box: Box) -> np.ndarray:
    top, left, height, width = box
    return image[top : top + height, left : left + width].copy()
