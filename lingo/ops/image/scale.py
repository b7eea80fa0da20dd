"""Images of another size, which Pillow computes.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from PIL import Image

from lingo.ops.image.picture import map_pictures
from lingo.ops.image.pixel import check_image, check_size, clip

Method = Literal["bilinear", "bicubic"]
"""A pixel of the result is a mean of those around its place: two (`bilinear`) or four (`bicubic`,
Keys 1981, a = -1/2) in each direction. Where an image shrinks, the mean is wider by the same
factor, so that no pixel is left out: the result is antialiased."""

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resize(image: np.ndarray, size: tuple[int, int], *, method: Method = "bilinear") -> np.ndarray:
    """Resizes an image.

    Args:
        image: [H, W, C].
        size: (height, width) of the result, in pixels.
        method: how pixels are interpolated.

    Returns:
        [*size, C] of the type of `image`. `bicubic` is clipped to the range of the type; of uint8,
        Pillow rounds and clips it after each of the two directions.

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
    """Resizes an image so that its shorter side has a length; the ratio of its sides stays.

    Args:
        image: [H, W, C].
        side: length of the shorter side of the result, in pixels.
        method: how pixels are interpolated.

    Returns:
        [side, W * side / H, C], or the other way round; lengths are rounded.

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
