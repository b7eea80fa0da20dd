"""Changes of images in training and evaluation: functions of (image, key), on the host."""

from __future__ import annotations

from lingo.ops.image.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    color_jitter,
)
from lingo.ops.image.crop import center_crop, flip, inception_crop
from lingo.ops.image.scale import resize, resize_short_side

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "center_crop",
    "color_jitter",
    "flip",
    "inception_crop",
    "resize",
    "resize_short_side",
]
