"""Images as pictures of Pillow, which resizes and warps them.

Its loops are fast, and those of uint8 count in integers, so that a result is the same on every
machine.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image


def map_pictures(image: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """Returns an image that Pillow has changed, [H', W', C] of its type.

    Args:
        image: [H, W, C], uint8 or float32.
        change: of a picture of mode RGB, L or F: an image of three bytes is one picture, of any
            other image each channel.

    >>> map_pictures(np.array([[[1], [2]]], np.uint8), lambda picture: picture.rotate(180))[..., 0]
    array([[2, 1]], dtype=uint8)
    """
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return np.array(change(Image.fromarray(np.ascontiguousarray(image))))
    channels = [Image.fromarray(np.ascontiguousarray(c)) for c in np.moveaxis(image, 2, 0)]
    return np.stack([np.asarray(change(picture)) for picture in channels], axis=2)
