"""Rotated, sheared and shifted images.

Each pixel of the result is the nearest one of the image; those from outside it are grey (128 of
255), so that later changes of contrast see a mean rather than black. Pillow computes them.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from lingo.ops.image.picture import map_pictures
from lingo.ops.image.pixel import check_image

GRAY = 128
"""The level of pixels that an image lacks."""

_FILL = {"RGB": (GRAY,) * 3, "L": GRAY, "F": GRAY / 255}  # by the mode of a picture


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
    """Returns the image whose pixel (x, y) is that at (a x + b y + c, d x + e y + f)."""
    check_image(image)

    def change(picture: Image.Image) -> Image.Image:
        method, fill = Image.Transform.AFFINE, _FILL[picture.mode]
        return picture.transform(picture.size, method, affine, fillcolor=fill)

    return map_pictures(image, change)
