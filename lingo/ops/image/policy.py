"""RandAugment and AutoAugment: operations on images, chosen at random (Cubuk et al. 2020; 2019).

RandAugment chooses among all operations, at one magnitude. AutoAugment chooses one of 25 pairs.
Each operation of a pair has a probability and a magnitude of its own.

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
256. AutoAugment translates by 250/224 m of the side, as EfficientNet's code does.

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

Step = tuple[str, float, int]
"""An operation of AutoAugment: its name, its probability, and its magnitude, 0..10."""

AUTO_AUGMENT_V0: tuple[tuple[Step, Step], ...] = (
    (("equalize", 0.8, 1), ("shear_y", 0.8, 4)),
    (("color", 0.4, 9), ("equalize", 0.6, 3)),
    (("color", 0.4, 1), ("rotate", 0.6, 8)),
    (("solarize", 0.8, 3), ("equalize", 0.4, 7)),
    (("solarize", 0.4, 2), ("solarize", 0.6, 2)),
    (("color", 0.2, 0), ("equalize", 0.8, 8)),
    (("equalize", 0.4, 8), ("solarize_add", 0.8, 3)),
    (("shear_x", 0.2, 9), ("rotate", 0.6, 8)),
    (("color", 0.6, 1), ("equalize", 1.0, 2)),
    (("invert", 0.4, 9), ("rotate", 0.6, 0)),
    (("equalize", 1.0, 9), ("shear_y", 0.6, 3)),
    (("color", 0.4, 7), ("equalize", 0.6, 0)),
    (("posterize", 0.4, 6), ("autocontrast", 0.4, 7)),
    (("solarize", 0.6, 8), ("color", 0.6, 9)),
    (("solarize", 0.2, 4), ("rotate", 0.8, 9)),
    (("rotate", 1.0, 7), ("translate_y", 0.8, 9)),
    (("shear_x", 0.0, 0), ("solarize", 0.8, 4)),
    (("shear_y", 0.8, 0), ("color", 0.6, 4)),
    (("color", 1.0, 0), ("rotate", 0.6, 2)),
    (("equalize", 0.8, 4), ("equalize", 0.0, 8)),
    (("equalize", 1.0, 4), ("autocontrast", 0.6, 2)),
    (("shear_y", 0.4, 7), ("solarize_add", 0.6, 7)),
    (("posterize", 0.8, 2), ("solarize", 0.6, 10)),
    (("solarize", 0.6, 8), ("equalize", 0.6, 1)),
    (("color", 0.8, 6), ("rotate", 0.4, 5)),
)
"""The policy `v0` of EfficientNet (github.com/tensorflow/tpu, models/official/efficientnet)."""

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


def auto_augment(
    image: np.ndarray,
    key: random.Key,
    *,
    policy: Sequence[Sequence[Step]] = AUTO_AUGMENT_V0,
) -> np.ndarray:
    """Applies the operations of one sub-policy, drawn at random (Cubuk et al. 2019, sec. 3).

    Args:
        image: [H, W, C], uint8, or float32 in 0..1, which is rounded to 256 levels; C is 1 or 3.
        key: this image's random key.
        policy: sub-policies, each a sequence of operations, which are applied in turn.

    Returns:
        [H, W, C], the image's type.

    Raises:
        ValueError: if `image` is not an image, or the policy has no sub-policy, or an operation
            with an unknown name or a number out of range.

    >>> image = np.arange(0, 180, 20, dtype=np.uint8).reshape(3, 3, 1)
    >>> auto_augment(image, random.root_key(0), policy=[[("invert", 1.0, 0)]])[0, :, 0]
    array([255, 235, 215], dtype=uint8)
    """
    check_image(image, channels=COLORS)
    _check_policy(policy)
    if image.dtype == np.float32:
        levels = np.rint(255 * image).astype(np.uint8)
        return auto_augment(levels, key, policy=policy).astype(np.float32) / 255
    root = random.fold(key, random.text_hash("auto_augment"))
    image = image.copy()
    chosen = policy[int(draw(root, "sub_policy", 1)[0] * len(policy))]
    for i, (name, rate, magnitude) in enumerate(chosen):
        own, m = random.fold(root, i), magnitude / 10
        applies, sign = draw(own, "operation", 2).tolist()
        if applies < rate:
            image = _apply(name, image, own, m, m if sign < 0.5 else -m, shift=250)
    return image


def _check_policy(policy: Sequence[Sequence[Step]]) -> None:
    known = {*PAPER_OPS, *EFFICIENTNET_OPS}
    for name, rate, magnitude in (step for steps in policy for step in steps):
        if name not in known or not 0 <= rate <= 1 or not 0 <= magnitude <= 10:
            raise ValueError(
                f"policy: {(name, rate, magnitude)} is not one of {', '.join(sorted(known))}, with"
                " a probability of 0..1 and a magnitude of 0..10"
            )
    if not policy:
        raise ValueError("policy: it has no sub-policy to draw: give at least one")


def _apply(
    name: str, image: np.ndarray, key: random.Key, m: float, signed: float, *, shift: int = 100
) -> np.ndarray:
    """Applies an operation to an image; `signed` is m or -m.

    `shift` is the translation in pixels at m = 1, for an image with a side of 224.
    """
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
            return translate_x(image, shift / _REFERENCE_SIDE * width * signed)
        case "translate_y":
            return translate_y(image, shift / _REFERENCE_SIDE * height * signed)
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
