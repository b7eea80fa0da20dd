"""Brightness, contrast, saturation, sharpness and hue of images.

To change one of the first four properties, an image is blended with a version that lacks it: a
black, grey, colourless or smooth image. Factor 1 gives the image, and factor 0 gives the other
version. A factor above 1 moves the image away from the other version. All functions take a few
NumPy operations per pixel. uint8 results are rounded as in Pillow's `ImageEnhance`.

Axes: H height, W width, C channels, 1 or 3.
"""

from __future__ import annotations

import math

import numpy as np

from lingo.ops import random
from lingo.ops.image.pixel import COLORS, check_image, clip, draw

_LUMA = np.array([19595, 38470, 7471])
"""Brightness of red, green and blue: 0.299, 0.587 and 0.114 (ITU-R BT.601), times 2**16."""


def adjust_brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends an image with black.

    Args:
        image: [H, W, C].
        factor: at least 0; 1: no change.

    >>> adjust_brightness(np.array([[[10, 100, 200]]], np.uint8), 1.5)
    array([[[ 15, 150, 255]]], dtype=uint8)
    """
    check_image(image)
    return blend(np.zeros_like(image), image, factor)


def adjust_contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends an image with a grey image of its mean brightness.

    Args:
        image: [H, W, C]; C is 1 or 3.
        factor: at least 0; 1: no change.

    >>> adjust_contrast(np.array([[[100], [200]]], np.uint8), 0.5)[..., 0]
    array([[125, 175]], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    mean = gray(image).mean(dtype=np.float64)
    if image.dtype == np.uint8:
        mean = int(mean + 0.5)
    return blend(np.full_like(image, mean), image, factor)


def adjust_saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends an image with its grey image.

    Args:
        image: [H, W, C]; C is 1 or 3. With one channel nothing changes.
        factor: at least 0; 1: no change.

    >>> adjust_saturation(np.array([[[100, 50, 0]]], np.uint8), 0)
    array([[[59, 59, 59]]], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    return blend(np.broadcast_to(gray(image), image.shape), image, factor)


def adjust_sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends an image with its weighted means over 3 x 3 pixels; the middle pixel has weight 5.

    Args:
        image: [H, W, C].
        factor: at least 0; 1: no change.

    Returns:
        The shape and type of `image`; pixels at the edges do not change.

    >>> image = np.zeros([3, 3, 1], np.uint8)
    >>> image[1, 1] = 130
    >>> adjust_sharpness(image, 0)[..., 0]
    array([[ 0,  0,  0],
           [ 0, 50,  0],
           [ 0,  0,  0]], dtype=uint8)
    """
    check_image(image)
    height, width = image.shape[:2]
    total = 4 * image[1:-1, 1:-1].astype(np.float32)
    for i in range(3):
        for j in range(3):
            total += image[i : i + height - 2, j : j + width - 2]
    smooth = image.copy()
    smooth[1:-1, 1:-1] = np.rint(total / 13) if image.dtype == np.uint8 else total / 13
    return blend(smooth, image, factor)


def adjust_hue(image: np.ndarray, shift: float) -> np.ndarray:
    """Turns the colours of an image by a fraction of the colour circle.

    Args:
        image: [H, W, C]; C is 1 or 3. With one channel nothing changes.
        shift: a fraction of the circle: 1/3 turns red into green, 1 changes nothing.

    Returns:
        The shape and type of `image`; a pixel's largest and smallest value stay the same.

    >>> adjust_hue(np.array([[[200, 0, 50]]], np.uint8), 1 / 3)
    array([[[ 50, 200,   0]]], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    if image.shape[2] == 1:
        return image.copy()
    planes = np.moveaxis(image, 2, 0).astype(np.float32, order="C")
    high, low = planes.max(0), planes.min(0)
    position = _hue(planes, high, high - low) + np.float32(6 * (shift % 1))
    position -= 6 * (position >= 6)
    # A channel has its highest value within distance 1 of its own position on the circle of length
    # 6, and its lowest value beyond distance 2.
    distance = np.abs(position - np.array([[[0]], [[2]], [[4]]], np.float32))
    distance = np.minimum(distance, 6 - distance)
    turned = np.moveaxis(low + (high - low) * np.clip(2 - distance, 0, 1), 0, 2)
    return clip(turned + 0.5 if image.dtype == np.uint8 else turned, image)


def color_jitter(
    image: np.ndarray,
    key: random.Key,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
) -> np.ndarray:
    """Changes brightness, contrast, saturation and hue by random amounts, in random order.

    The defaults are usual for ImageNet (Howard 2013 changed the first three).

    Args:
        image: [H, W, C]; C is 1 or 3.
        key: this image's random key.
        brightness: in 0..1; the factor is uniform in 1 - brightness..1 + brightness.
        contrast: like `brightness`.
        saturation: like `brightness`.
        hue: in 0..0.5; the shift is uniform in -hue..hue of the colour circle.

    >>> color_jitter(np.array([[[100, 150, 200]]], np.uint8), random.root_key(0))
    array([[[ 63,  68, 103]]], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    amounts = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    for name, amount in amounts.items():
        if not 0 <= amount <= 1:
            raise ValueError(f"{name}={amount} is not in 0..1")
    if not 0 <= hue <= 0.5:
        raise ValueError(f"{hue=} is not in 0..0.5")
    changes = (  # function, value that changes nothing, amount
        (adjust_brightness, 1, brightness),
        (adjust_contrast, 1, contrast),
        (adjust_saturation, 1, saturation),
        (adjust_hue, 0, hue),
    )
    ranks, steps = draw(key, "color_jitter", 2, len(changes))
    for i in np.argsort(ranks, kind="stable"):
        change, neutral, amount = changes[i]
        if amount:
            image = change(image, neutral + amount * (2 * steps[i] - 1))
    return image.copy()


def gray(image: np.ndarray) -> np.ndarray:
    """Returns the brightness, [H, W, 1], of an image with 1 or 3 channels, in the image's type.

    >>> gray(np.array([[[100, 50, 0]]], np.uint8))
    array([[[59]]], dtype=uint8)
    """
    if image.shape[2] == 1:
        return image
    if image.dtype == np.uint8:
        return ((image @ _LUMA + 2**15) >> 16).astype(np.uint8)[..., None]
    return (image @ (_LUMA / 2**16).astype(np.float32))[..., None]


def blend(other: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    """Returns other + factor * (image - other), clipped to the range of the type.

    Args:
        other: [H, W, C].
        image: the same shape and type.
        factor: at least 0; above 1, the image moves away from `other`.

    Raises:
        ValueError: if the factor is negative, or not a number.

    >>> white = np.full([1, 1, 1], 255, np.uint8)
    >>> blend(np.zeros_like(white), white, 0.25)
    array([[[63]]], dtype=uint8)
    """
    if not 0 <= factor < math.inf:
        raise ValueError(f"{factor=} is not a finite number of at least 0; 1 changes nothing")
    start = other.astype(np.float32)
    return clip(start + np.float32(factor) * (image - start), image)


def _hue(planes: np.ndarray, high: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Returns each pixel's position on a colour circle of length 6, [H, W]: red 0, green 2, blue 4.

    `planes` are [3, H, W]; `high` is each pixel's largest value, and `spread` is its largest minus
    its smallest value.
    """
    red, green, blue = planes
    unit = np.where(spread > 0, spread, 1)
    return np.where(
        high == red,
        (green - blue) / unit,
        np.where(high == green, 2 + (blue - red) / unit, 4 + (red - green) / unit),
    )
