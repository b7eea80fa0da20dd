"""Changes the 256 levels of an image by lookup tables, in NumPy.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.ops.image.pixel import check_image

_LEVELS = np.arange(256)


def autocontrast(image: np.ndarray) -> np.ndarray:
    """Stretches each channel, so that its darkest pixel is 0 and its brightest pixel is 255.

    Args:
        image: uint8 [H, W, C]; a channel with a single level does not change.

    Returns:
        uint8 [H, W, C]; fractions are cut off, as in Pillow.

    >>> autocontrast(np.array([[[50], [76], [101]]], np.uint8))[..., 0]
    array([[  0, 130, 255]], dtype=uint8)
    """
    _check_bytes(image)

    def stretch(channel: np.ndarray) -> np.ndarray:
        low, high = int(channel.min()), int(channel.max())
        if low == high:
            return _LEVELS
        scale = 255 / (high - low)
        return np.clip((_LEVELS * scale - low * scale).astype(np.int64), 0, 255)

    return _map_channels(image, stretch)


def equalize(image: np.ndarray) -> np.ndarray:
    """Spreads the levels of each channel, so that all occur about equally often.

    Args:
        image: uint8 [H, W, C]; a channel does not change if at most 254 of its pixels are below its
            highest level.

    Returns:
        uint8 [H, W, C], rounded as in Pillow.

    >>> equalize(np.repeat(np.uint8([[10, 11, 12]]), 255, axis=0)[..., None])[0, :, 0]
    array([  0, 128, 255], dtype=uint8)
    """
    _check_bytes(image)

    def spread(channel: np.ndarray) -> np.ndarray:
        counts = np.bincount(channel.ravel(), minlength=256)
        step = (counts.sum() - counts[channel.max()]) // 255
        if not step:
            return _LEVELS
        return np.minimum((np.cumsum(counts) - counts + step // 2) // step, 255)

    return _map_channels(image, spread)


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """Keeps the upper bits of each level.

    Args:
        image: uint8 [H, W, C].
        bits: in 0..8; 8: no change.

    Returns:
        uint8 [H, W, C].

    >>> posterize(np.array([[[15, 16, 255]]], np.uint8), 4)
    array([[[  0,  16, 240]]], dtype=uint8)
    """
    _check_bytes(image)
    if bits not in range(9):
        raise ValueError(f"{bits=} is not an int in 0..8")
    return image & np.uint8(256 - 2 ** (8 - bits))


def solarize(image: np.ndarray, threshold: int = 128) -> np.ndarray:
    """Inverts all levels that are at or above a threshold.

    Args:
        image: uint8 [H, W, C].
        threshold: in 0..256; 256: no change.

    Returns:
        uint8 [H, W, C].

    >>> solarize(np.array([[[10, 200, 255]]], np.uint8))
    array([[[10, 55,  0]]], dtype=uint8)
    """
    _check_bytes(image)
    _check_threshold(threshold)
    return np.where(image < threshold, image, 255 - image)


def solarize_add(image: np.ndarray, addition: int, threshold: int = 128) -> np.ndarray:
    """Adds a number to the levels below a threshold.

    Args:
        image: uint8 [H, W, C].
        addition: in -255..255; sums are clipped to 0..255.
        threshold: in 0..256.

    Returns:
        uint8 [H, W, C].

    >>> solarize_add(np.array([[[10, 120, 200]]], np.uint8), 50)
    array([[[ 60, 170, 200]]], dtype=uint8)
    """
    _check_bytes(image)
    _check_threshold(threshold)
    if addition not in range(-255, 256):
        raise ValueError(f"{addition=} is not an int in -255..255")
    brighter = np.clip(_LEVELS + addition, 0, 255).astype(np.uint8)
    return np.where(image < threshold, brighter[image], image)


def invert(image: np.ndarray) -> np.ndarray:
    """Returns the negative of an image, uint8 [H, W, C].

    >>> invert(np.array([[[10, 200, 255]]], np.uint8))
    array([[[245,  55,   0]]], dtype=uint8)
    """
    _check_bytes(image)
    return 255 - image


def _map_channels(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Maps each channel, [H, W], by the lookup table, [256], that `table` returns for it."""
    channels = np.moveaxis(image, 2, 0)
    return np.stack([table(c).astype(np.uint8)[c] for c in channels], axis=2)


def _check_bytes(image: np.ndarray) -> None:
    check_image(image)
    if image.dtype != np.uint8:
        raise ValueError(
            f"this function changes the 256 levels of uint8 images, but this one is {image.dtype}:"
            " convert it by (255 * image).round().astype('uint8')"
        )


def _check_threshold(threshold: int) -> None:
    if threshold not in range(257):
        raise ValueError(f"{threshold=} is not an int in 0..256")
