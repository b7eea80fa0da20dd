"""Checks and random numbers for the image functions of this folder.

An image is a NumPy array [H, W, C]: uint8 in 0..255, or float32 in 0..1. A function returns an
image of the type that it was given, and never changes its argument. It runs in NumPy on one example
at a time, where the `augment` of an input calls it.

Random numbers depend only on the key and on the function's name, so that one key serves all
functions. For a second call of the same function, `random.fold(key, 1)` derives another key.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from lingo.ops import random

COLORS = (1, 3)
"""The numbers of channels that an image with colours may have: grey, or red, green and blue."""


def check_image(image: Any, *, channels: Collection[int] | None = None) -> None:
    """Checks that a value is an image.

    Args:
        image: any value.
        channels: the numbers of channels that are allowed; None: any.

    >>> check_image(np.zeros([8, 8, 1]))
    Traceback (most recent call last):
        ...
    ValueError: an image is uint8, or float32 in 0..1; this one is float64: convert it
    """
    check_values(image, "[H, W, C]")
    if channels is not None and image.shape[2] not in channels:
        allowed = " or ".join(map(str, channels))
        raise ValueError(
            f"an image with colours has {allowed} channels; this one is {_shape(image)}"
        )


def check_values(images: Any, form: str) -> None:
    """Checks that a value is an image or a batch of images, of a form such as "[H, W, C]".

    Raises ValueError if the value has another number of axes, another type, or numbers out of
    range.

    >>> check_values(np.zeros([8, 8, 1], np.uint8), "[B, H, W, C]")
    Traceback (most recent call last):
        ...
    ValueError: an image is [B, H, W, C], without empty axes; this one is [8, 8, 1]
    """
    if not isinstance(images, np.ndarray):
        raise ValueError(f"an image is a NumPy array {form}, not a {type(images).__name__}")
    if images.ndim != form.count(",") + 1 or not images.size:
        raise ValueError(f"an image is {form}, without empty axes; this one is {_shape(images)}")
    if images.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"an image is uint8, or float32 in 0..1; this one is {images.dtype}: convert it"
        )
    if images.dtype == np.float32 and not (images.min() >= 0 and images.max() <= 1):  # or nan
        raise ValueError(
            f"a float32 image is in 0..1; this one is in {images.min():g}..{images.max():g}: scale"
            " it to 0..1, and normalize it last"
        )


def check_size(size: tuple[int, int]) -> None:
    """Checks the size of a result, (H, W); raises ValueError if it is not two positive ints.

    >>> check_size((0, 8))
    Traceback (most recent call last):
        ...
    ValueError: size=(0, 8) is not (height, width) in pixels, at least 1
    """
    if not (isinstance(size, tuple | list) and len(size) == 2 and all(_is_length(n) for n in size)):
        raise ValueError(f"{size=} is not (height, width) in pixels, at least 1")


def check_rate(rate: float) -> None:
    """Checks a probability; raises ValueError if it is not in 0..1.

    >>> check_rate(1.5)
    Traceback (most recent call last):
        ...
    ValueError: rate=1.5 is not in 0..1
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"{rate=} is not in 0..1")


def clip(values: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Converts values, float [H, W, C], to the type of an image.

    Values outside the type's range are clipped; for uint8, fractions are cut off, as in Pillow.

    >>> clip(np.array([[[-0.5, 0.7, 300]]]), np.zeros([1, 1, 3], np.uint8))
    array([[[  0,   0, 255]]], dtype=uint8)
    """
    white = 255 if image.dtype == np.uint8 else 1
    return np.clip(values, 0, white).astype(image.dtype)


def draw(key: random.Key, name: str, *sizes: int) -> np.ndarray:
    """Returns random float64 [*sizes] in [0, 1), which depend on a key and a name.

    >>> draw(random.root_key(0), "flip", 2) == draw(random.root_key(0), "crop", 2)
    array([False, False])
    """
    return random.uniform(random.fold(key, random.text_hash(name)), *sizes).astype(np.float64)


def _is_length(value: Any) -> bool:
    return isinstance(value, int | np.integer) and bool(value > 0)


def _shape(image: np.ndarray) -> list[int]:
    return list(image.shape)
