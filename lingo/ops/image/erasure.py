"""Erases rectangles of images, in NumPy.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import numpy as np

from lingo.ops import random
from lingo.ops.image.box import random_boxes
from lingo.ops.image.pixel import check_image, check_rate, draw
from lingo.ops.image.warp import GRAY


def cutout(image: np.ndarray, key: random.Key, *, side: int) -> np.ndarray:
    """Makes a square of an image grey (DeVries and Taylor 2017).

    Args:
        image: [H, W, C].
        key: this image's random key.
        side: side of the square, in pixels. The square's middle is a random pixel of the image.
            What lies outside the image is cut off.

    >>> cutout(np.zeros([3, 4, 1], np.uint8), random.root_key(0), side=2)[..., 0]
    array([[  0,   0,   0,   0],
           [  0,   0, 128, 128],
           [  0,   0, 128, 128]], dtype=uint8)
    """
    check_image(image)
    if side < 0:
        raise ValueError(f"{side=}, the side of the square, is negative")
    sizes = np.array(image.shape[:2])
    first = (draw(key, "cutout", 2) * sizes).astype(np.int64) - side // 2
    (top, left), (bottom, right) = np.maximum(first, 0), first + side
    result = image.copy()
    result[top:bottom, left:right] = GRAY if image.dtype == np.uint8 else GRAY / 255
    return result


def random_erasing(
    image: np.ndarray,
    key: random.Key,
    *,
    rate: float = 0.5,
    min_area: float = 0.02,
    max_area: float = 0.4,
    max_aspect: float = 10 / 3,
) -> np.ndarray:
    """Replaces a random rectangle by noise, with probability `rate` (Zhong et al. 2020, sec. 3).

    Unlike in the paper, the logarithm of the aspect ratio is uniform, not the ratio itself, so that
    high and wide rectangles are equally likely. If none of ten draws fits, the image is unchanged.

    Args:
        image: [H, W, C].
        key: this image's random key.
        rate: in 0..1.
        min_area: least fraction of the image's area.
        max_area: largest fraction of the image's area.
        max_aspect: largest ratio of the longer to the shorter side.

    Returns:
        The shape and type of `image`; all values of the noise are equally likely.

    >>> random_erasing(np.zeros([3, 4, 1], np.uint8), random.root_key(0), rate=1)[..., 0]
    array([[  0,   0,   0,   0],
           [ 63, 179,   0,   0],
           [ 30, 210,   0,   0]], dtype=uint8)
    """
    check_image(image)
    check_rate(rate)
    height, width, channels = image.shape
    limits = {"min_area": min_area, "max_area": max_area, "max_aspect": max_aspect}
    keys = random.key_array([key])
    (box,) = random_boxes([(height, width)], keys, name="random_erasing", **limits)
    result = image.copy()
    if box is not None and draw(key, "random_erasing.rate") < rate:
        noise = draw(key, "random_erasing.noise", box.height, box.width, channels)
        result[box.slices] = noise * (256 if image.dtype == np.uint8 else 1)
    return result
