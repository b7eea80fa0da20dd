"""Images for the tests of this folder."""

from __future__ import annotations

import numpy as np


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns an image whose pixels are independent of each other, uint8 [H, W, C]."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def scene(*shape: int) -> np.ndarray:
    """Returns an image with smooth parts, edges and an uneven histogram, uint8 [H, W, C]."""
    height, width, channels = shape
    y, x, c = np.ogrid[:height, :width, :channels]
    smooth = 90 + 60 * np.sin(x / 3 + c) + 50 * np.cos(y / 4 - c)
    return np.where((x + 2 * y) % 11 < 2, 230 - 40 * c, np.clip(smooth, 20, 220)).astype(np.uint8)


def as_float(image: np.ndarray) -> np.ndarray:
    """Returns a uint8 image as float32 in 0..1."""
    return image.astype(np.float32) / 255


def distance_to_uniform(values: np.ndarray) -> float:
    """Returns the largest distance of the distribution of values to that of 0..1, times sqrt(N).

    It is above 1.95 for one of a thousand sets of values that are uniform (Kolmogorov).
    """
    n = len(values)
    steps = np.sort(values) - np.arange(n) / n
    return float(np.maximum(np.abs(steps), np.abs(steps - 1 / n)).max() * np.sqrt(n))
