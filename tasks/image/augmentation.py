"""Recipes that change examples of images, for `augment` of an input: crops, flips, RandAugment.

    GlyphInput.params(augment=train_example, augment_arguments={"size": 32, "padding": 4})

They are functions of (example, key) and keyword arguments; the key is from `lingo.ops.random`. An
example has `images`, [H, W, C], uint8, or float32 in 0..1; its other arrays stay unchanged.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lingo.ops import random
from lingo.ops.image import (
    EFFICIENTNET_OPS,
    auto_augment,
    center_crop,
    color_jitter,
    flip,
    inception_crop,
    pad_and_crop,
    rand_augment,
    random_erasing,
    resize,
    resize_short_side,
)

Example = Mapping[str, np.ndarray]


def train_example(
    example: Example,
    key: random.Key,
    *,
    size: int,
    padding: int | None = None,
    min_area: float = 0.08,
    flip_rate: float = 0.5,
    jitter: float = 0.0,
    num_ops: int = 0,
    magnitude: float = 10.0,
    ops: Sequence[str] = EFFICIENTNET_OPS,
    uses_auto_augment: bool = False,
    erasing_rate: float = 0.0,
) -> dict[str, np.ndarray]:
    """Crops an image at random; then flips, jitters, augments and erases as the arguments say.

    Args:
        example: {name: array}.
        key: of this example.
        size: height and width of the result, in pixels.
        padding: None: the crop is a random rectangle (`inception_crop`), as for ImageNet. A number
            of pixels: the image is resized and moved by at most this number (`pad_and_crop`), as
            for CIFAR.
        min_area: smallest part of the image that the random rectangle covers.
        flip_rate: probability of mirror images; 0 for letters and digits.
        jitter: largest change of brightness, contrast and saturation, 0..1. Hue changes by at
            most a quarter of it.
        num_ops: operations of RandAugment; 0: none.
        magnitude: strength of these operations, usually 5..30.
        ops: names of the operations to choose from.
        uses_auto_augment: whether AutoAugment (`AUTO_AUGMENT_V0`) comes before RandAugment.
        erasing_rate: probability that a rectangle is replaced by noise.

    Returns:
        The example, with `images` uint8 or float32 as before, [size, size, C].

    Raises:
        ValueError: if `images` is not an image, or a number is out of range.
    """
    image = example["images"]
    if padding is None:
        image = inception_crop(image, key, size=(size, size), min_area=min_area)
    else:
        image = pad_and_crop(resize(image, (size, size)), key, padding=padding)
    image = flip(image, key, rate=flip_rate)
    if jitter:
        amounts = {"brightness": jitter, "contrast": jitter, "saturation": jitter}
        image = color_jitter(image, key, **amounts, hue=jitter / 4)
    if uses_auto_augment:
        image = auto_augment(image, key)
    if num_ops:
        image = rand_augment(image, key, num_ops=num_ops, magnitude=magnitude, ops=ops)
    if erasing_rate:
        image = random_erasing(image, key, rate=erasing_rate)
    return {**example, "images": image}


def eval_example(
    example: Example, key: random.Key, *, size: int, crop_ratio: float = 0.875
) -> dict[str, np.ndarray]:
    """Resizes an image and crops its middle, without randomness.

    Args:
        example: {name: array}.
        key: not used; every `augment` takes one.
        size: height and width of the result, in pixels.
        crop_ratio: above 0, at most 1: `size` is this part of the shorter side before the crop.
            With size 224 and ratio 0.875, images are resized to 256.

    Returns:
        The example, with `images` uint8 or float32 as before, [size, size, C].

    Raises:
        ValueError: if `images` is not an image, or a number is out of range.
    """
    del key
    if not 0 < crop_ratio <= 1:
        raise ValueError(f"{crop_ratio=} is not above 0 and at most 1")
    image = resize_short_side(example["images"], round(size / crop_ratio))
    return {**example, "images": center_crop(image, (size, size))}
