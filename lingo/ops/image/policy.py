"""RandAugment: some operations, chosen at random, at one magnitude (Cubuk et al. 2020).

The operations are AutoAugment's (Cubuk et al. 2019, table 6), with the strengths that
EfficientNet and big_vision give them, as a function of m = magnitude / 10:

    identity, autocontrast, equalize, invert    no strength
    rotate                                      30 m degrees, to either side
    shear_x, shear_y                            slope 0.3 m, to either side
    translate_x, translate_y                    100/224 m of the side, to either side
    posterize                                   4 m bits
    solarize                                    levels from 256 m on are inverted
    solarize_add                                110 m is added to levels below 128
    color, contrast, brightness, sharpness      factor 0.1 + 1.8 m
    cutout                                      a square of 80/224 m of the shorter side

So posterize and solarize weaken as the magnitude grows: from 10 on, solarize changes nothing.
Lengths are EfficientNet's for images of 224 pixels, and scale with the image. Contrast blends with
the mean brightness, as in Pillow; EfficientNet's code blends with the number of pixels divided by
256.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lingo.ops import random
from lingo.ops.image import level
from lingo.ops.image.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
)
from lingo.ops.image.erasure import cutout
from lingo.ops.image.pixel import COLORS, check_image, draw
from lingo.ops.image.warp import rotate, shear_x, shear_y, translate_x, translate_y

_SHARED_OPS = (
    "autocontrast",
    "equalize",
    "rotate",
    "solarize",
    "color",
    "posterize",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)

PAPER_OPS = ("identity", *_SHARED_OPS)
"""The 14 operations of the paper (Cubuk et al. 2020, sec. 3)."""

EFFICIENTNET_OPS = (*_SHARED_OPS, "solarize_add", "invert", "cutout")
"""The 16 operations of EfficientNet and big_vision."""

_REFERENCE_SIDE = 224  # pixels: side of the images for which EfficientNet's lengths are meant


def rand_augment(
    image: np.ndarray,
    key: random.Key,
    *,
    num_ops: int = 2,
    magnitude: float = 10,
    ops: Sequence[str] = EFFICIENTNET_OPS,
) -> np.ndarray:
    """Applies independently drawn operations to an image, one after the other.

    Args:
        image: [H, W, C], uint8, or float32 in 0..1, which is rounded to 256 levels; C is 1 or 3.
        key: this image's random key.
        num_ops: the number of operations.
        magnitude: at least 0, usually 5..30; the module's docstring lists the strengths.
        ops: names of the operations to draw from, such as `PAPER_OPS` or `EFFICIENTNET_OPS`.

    >>> image = np.arange(0, 180, 20, dtype=np.uint8).reshape(3, 3, 1)
    >>> rand_augment(image, random.root_key(0))[..., 0]
    array([[  0,  20, 100],
           [ 60,  80, 160],
           [120, 140, 128]], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    if num_ops < 0 or not 0 <= magnitude < math.inf:
        raise ValueError(f"{num_ops=} and {magnitude=} are at least 0")
    known = {*PAPER_OPS, *EFFICIENTNET_OPS}
    if not ops or set(ops) - known:
        raise ValueError(f"ops={list(ops)} are not one or more of {', '.join(sorted(known))}")
    if image.dtype == np.float32:
        levels = np.rint(255 * image).astype(np.uint8)
        changed = rand_augment(levels, key, num_ops=num_ops, magnitude=magnitude, ops=ops)
        return changed.astype(np.float32) / 255
    root, m = random.fold(key, random.text_hash("rand_augment")), magnitude / 10
    image = image.copy()
    for i in range(num_ops):
        own = random.fold(root, i)
        choice, sign = draw(own, "operation", 2).tolist()
        image = _apply(ops[int(choice * len(ops))], image, own, m, m if sign < 0.5 else -m)
    return image


def _apply(name: str, image: np.ndarray, key: random.Key, m: float, signed: float) -> np.ndarray:
    """Applies an operation to an image; `signed` is m or -m."""
    height, width = image.shape[:2]
    match name:
        case "identity":
            return image
        case "autocontrast":
            return level.autocontrast(image)
        case "equalize":
            return level.equalize(image)
        case "invert":
            return level.invert(image)
        case "rotate":
            return rotate(image, 30 * signed)
        case "shear_x":
            return shear_x(image, 0.3 * signed)
        case "shear_y":
            return shear_y(image, 0.3 * signed)
        case "translate_x":
            return translate_x(image, 100 / _REFERENCE_SIDE * width * signed)
        case "translate_y":
            return translate_y(image, 100 / _REFERENCE_SIDE * height * signed)
        case "posterize":
            return level.posterize(image, min(int(4 * m), 8))
        case "solarize":
            return level.solarize(image, min(int(256 * m), 256))
        case "solarize_add":
            return level.solarize_add(image, min(int(110 * m), 255))
        case "color":
            return adjust_saturation(image, 0.1 + 1.8 * m)
        case "contrast":
            return adjust_contrast(image, 0.1 + 1.8 * m)
        case "brightness":
            return adjust_brightness(image, 0.1 + 1.8 * m)
        case "sharpness":
            return adjust_sharpness(image, 0.1 + 1.8 * m)
        case "cutout":
            return cutout(image, key, side=int(80 / _REFERENCE_SIDE * min(height, width) * m))
    raise ValueError(f"{name!r} is not an operation on images")
