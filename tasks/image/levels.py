"""Normalizes the levels of images for a model.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError

Levels = float | tuple[float, ...]
"""A number for all channels, or one for each."""

_WHITE = 255.0  # the largest level of uint8


def normalize_levels(images: tf.Tensor, *, mean: Levels, std: Levels) -> tf.Tensor:
    """Returns (image - mean) / std, any float type; uint8 levels are first scaled to 0..1.

    >>> normalize_levels(tf.constant([[[[0], [255]]]], tf.uint8), mean=0.5, std=0.5).numpy().ravel()
    array([-1.,  1.], dtype=float32)
    """
    if images.dtype == tf.uint8:
        images = tf.cast(images, tf.float32) / _WHITE
    means, stds = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if np.any(means != 0) or np.any(stds != 1):
        images = (tf.cast(images, tf.float32) - means) / stds
    return images


def check_levels(field: str, levels: Levels, image_shape: Sequence[int]) -> None:
    """Raises ParamError unless a field has one number, or one number per channel."""
    values, channels = np.atleast_1d(levels), image_shape[-1]
    if len(values) not in (1, channels):
        raise ParamError(
            f"{field} has {len(values)} numbers, but image_shape={tuple(image_shape)} has"
            f" {channels} channels"
        )
