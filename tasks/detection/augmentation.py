"""A recipe that changes examples of detection, for `augment` of an input: crops, mirrors, colours.

    GlyphSceneInput.params(augment=train_example, augment_arguments={"size": 128, "flip_rate": 0.0})

Axes: H height, W width, C channels, N boxes, M bins of a mask along each side.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lingo.ops import random
from lingo.ops.image import (
    BoxedImage,
    color_jitter,
    flip_boxed,
    min_iou_crop,
    resize,
    scale_jitter,
)

Example = Mapping[str, np.ndarray]


def train_example(
    example: Example,
    key: random.Key,
    *,
    size: int,
    crop: bool = True,
    flip_rate: float = 0.5,
    jitter: float = 0.0,
    scales: tuple[float, float] | None = None,
) -> dict[str, np.ndarray]:
    """Crops a part with objects (`min_iou_crop`), mirrors it, and changes its colours.

    Args:
        example: {name: array}, with `images`, [H, W, C], uint8, or float32 in 0..1; `boxes`,
            float32 [N, 4]; `box_labels`, int32 [N], 0 for an absent box; perhaps `masks`, uint8
            [N, M, M], inside the boxes.
        key: of this example.
        size: height and width of the result, in pixels.
        crop: whether to crop; `CocoInput` crops better, before it decodes an image.
        flip_rate: probability of mirror images; 0 for letters and digits.
        jitter: largest change of brightness, contrast and saturation, 0..1. Hue changes by at
            most a quarter of it.
        scales: least and largest factor of `scale_jitter`, which then takes the place of the crop;
            None: no scaling.

    Returns:
        The example, with `images`, [size, size, C] of the same type, its boxes, labels and masks.
        Boxes are absent if their middle is outside or, with `scales`, if they are outside wholly.
        Other arrays stay unchanged.

    Raises:
        ValueError: if `images` is not an image, or a number is out of range.
    """
    image, boxes, labels = (example[name] for name in ("images", "boxes", "box_labels"))
    boxed = BoxedImage(image, boxes, labels, example.get("masks"))
    if scales is not None:
        low, high = scales
        boxed = scale_jitter(boxed, key, size=(size, size), low=low, high=high)
    elif crop:
        boxed = min_iou_crop(boxed, key, size=(size, size))
    else:
        boxed = boxed._replace(image=resize(boxed.image, (size, size)))
    boxed = flip_boxed(boxed, key, rate=flip_rate)
    if jitter:
        amounts = {"brightness": jitter, "contrast": jitter, "saturation": jitter}
        boxed = boxed._replace(image=color_jitter(boxed.image, key, **amounts, hue=jitter / 4))
    changed = {"images": boxed.image, "boxes": boxed.boxes, "box_labels": boxed.labels}
    if boxed.masks is not None:
        changed["masks"] = boxed.masks
    return {**example, **changed}
