"""Rotates, shears, shifts and resizes images, by Pillow.

Pillow's loops are fast. For uint8 they compute with integers, so that results are the same on every
machine. A pixel of a rotated, sheared or shifted image is the nearest pixel of the original. Pixels
from outside of the original are grey (128 of 255), so that later changes of contrast see a mean
rather than black.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import Image

from lingo.ops.image.pixel import check_image, check_size, clip

GRAY = 128
"""The level of pixels from outside of an image."""

_FILL = {"RGB": (GRAY,) * 3, "L": GRAY, "F": GRAY / 255}  # mode of a Pillow picture -> level

Method = Literal["bilinear", "bicubic"]
"""A pixel of the result is a weighted mean of the two (`bilinear`) or four (`bicubic`, Keys 1981,
a = -1/2) nearest pixels in each direction. If an image shrinks, the mean is wider by the same
factor, so that no pixel is left out: the result is antialiased."""

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Rotates an image about its middle, counterclockwise.

    Args:
        image: [H, W, C].
        degrees: any angle.

    >>> rotate(np.array([[[1], [2]], [[3], [4]]], np.uint8), 90)[..., 0]
    array([[2, 4],
           [1, 3]], dtype=uint8)
    """
    check_image(image)
    return map_pictures(image, lambda p: p.rotate(degrees, fillcolor=_FILL[p.mode]))


def shear_x(image: np.ndarray, slope: float) -> np.ndarray:
    """Moves each row to the left by `slope` times its distance from the upper edge.

    Args:
        image: [H, W, C].
        slope: any number; below 0, rows move to the right.

    >>> shear_x(np.array([[[1], [2]], [[3], [4]]], np.uint8), 1 / 2)[..., 0]
    array([[  1,   2],
           [  4, 128]], dtype=uint8)
    """
    return _warp(image, (1, slope, 0, 0, 1, 0))


def shear_y(image: np.ndarray, slope: float) -> np.ndarray:
    """Moves each column up by `slope` times its distance from the left edge.

    Args:
        image: [H, W, C].
        slope: any number; below 0, columns move down.

    >>> shear_y(np.array([[[1], [2]], [[3], [4]]], np.uint8), 1 / 2)[..., 0]
    array([[  1,   4],
           [  3, 128]], dtype=uint8)
    """
    return _warp(image, (1, 0, 0, slope, 1, 0))


def translate_x(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moves an image to the right.

    Args:
        image: [H, W, C].
        pixels: any number, which is rounded; below 0, the image moves to the left.

    >>> translate_x(np.array([[[1], [2], [3]]], np.uint8), 1)[..., 0]
    array([[128,   1,   2]], dtype=uint8)
    """
    return _warp(image, (1, 0, -round(pixels), 0, 1, 0))


def translate_y(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moves an image down.

    Args:
        image: [H, W, C].
        pixels: any number, which is rounded; below 0, the image moves up.

    >>> translate_y(np.array([[[1]], [[2]], [[3]]], np.uint8), -1)[..., 0, 0]
    array([  2,   3, 128], dtype=uint8)
    """
    return _warp(image, (1, 0, 0, 0, 1, -round(pixels)))


def _warp(image: np.ndarray, affine: tuple[float, ...]) -> np.ndarray:
    """Returns an image whose pixel (x, y) is the old pixel (a x + b y + c, d x + e y + f)."""
    check_image(image)

    def change(picture: Image.Image) -> Image.Image:
        method, fill = Image.Transform.AFFINE, _FILL[picture.mode]
        return picture.transform(picture.size, method, affine, fillcolor=fill)

    return map_pictures(image, change)


def map_pictures(image: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """Applies a function of Pillow pictures to an image; returns [H', W', C] of the image's type.

    Args:
        image: [H, W, C], uint8 or float32.
        change: function of a picture of mode RGB, L or F. A uint8 image with three channels is one
            picture; in other images each channel is a picture.

    >>> map_pictures(np.array([[[1], [2]]], np.uint8), lambda picture: picture.rotate(180))[..., 0]
    array([[2, 1]], dtype=uint8)
    """
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return np.array(change(Image.fromarray(np.ascontiguousarray(image))))
    channels = [Image.fromarray(np.ascontiguousarray(c)) for c in np.moveaxis(image, 2, 0)]
    return np.stack([np.asarray(change(picture)) for picture in channels], axis=2)


# ---- another size --------------------------------------------------------------------------------


def resize(image: np.ndarray, size: tuple[int, int], *, method: Method = "bilinear") -> np.ndarray:
    """Resizes an image.

    Args:
        image: [H, W, C].
        size: (height, width) of the result, in pixels.
        method: how pixels are interpolated.

    Returns:
        [*size, C] of the type of `image`. Results of `bicubic` are clipped to the type's range; for
        uint8, Pillow rounds and clips after each of the two directions.

    >>> image = np.array([[[0], [100]], [[100], [200]]], np.uint8)
    >>> resize(image, (1, 4))[..., 0]
    array([[ 50,  75, 125, 150]], dtype=uint8)
    """
    check_image(image)
    check_size(size)
    if method not in _FILTERS:
        raise ValueError(f"{method=} is none of {', '.join(_FILTERS)}")
    if image.shape[:2] == tuple(size):
        return image.copy()
    height, width = size
    resized = map_pictures(image, lambda p: p.resize((width, height), _FILTERS[method]))
    return clip(resized, image)


def resize_short_side(image: np.ndarray, side: int, *, method: Method = "bilinear") -> np.ndarray:
    """Resizes an image so that its shorter side has a given length; the aspect ratio stays.

    Args:
        image: [H, W, C].
        side: length of the shorter side of the result, in pixels.
        method: how pixels are interpolated.

    Returns:
        [side, W * side / H, C] if H is the shorter side, else [H * side / W, side, C]. Lengths are
        rounded.

    Raises:
        ValueError: as `resize`.

    >>> resize_short_side(np.zeros([30, 40, 3], np.uint8), 15).shape
    (15, 20, 3)
    """
    check_image(image)
    check_size((side, side))
    height, width = image.shape[:2]
    factor = side / min(height, width)
    return resize(image, (round(height * factor), round(width * factor)), method=method)
