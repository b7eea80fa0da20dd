"""Image transformations for training and evaluation, in NumPy: functions of (image, random key).

Each function takes an image [H, W, C], uint8, or float32 in 0..1, with any number of channels
unless its docstring names them. It returns a new image of the same type, and of the same shape
unless its docstring says otherwise. It raises ValueError for any other image or an argument out of
range.
"""

from __future__ import annotations

from lingo.ops.image.boxed_image import BoxedImage, flip_boxed, min_iou_crop, scale_jitter
from lingo.ops.image.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    color_jitter,
)
from lingo.ops.image.crop import center_crop, flip, inception_crop, pad_and_crop
from lingo.ops.image.erasure import cutout, random_erasing
from lingo.ops.image.level import (
    autocontrast,
    equalize,
    invert,
    posterize,
    solarize,
    solarize_add,
)
from lingo.ops.image.mixing import LabelledBatch, cutmix, mixup
from lingo.ops.image.policy import (
    AUTO_AUGMENT_V0,
    EFFICIENTNET_OPS,
    PAPER_OPS,
    auto_augment,
    rand_augment,
)
from lingo.ops.image.warp import (
    resize,
    resize_short_side,
    rotate,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)

__all__ = [
    "AUTO_AUGMENT_V0",
    "EFFICIENTNET_OPS",
    "PAPER_OPS",
    "BoxedImage",
    "LabelledBatch",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "auto_augment",
    "autocontrast",
    "center_crop",
    "color_jitter",
    "cutmix",
    "cutout",
    "equalize",
    "flip",
    "flip_boxed",
    "inception_crop",
    "invert",
    "min_iou_crop",
    "mixup",
    "pad_and_crop",
    "posterize",
    "rand_augment",
    "random_erasing",
    "resize",
    "resize_short_side",
    "rotate",
    "scale_jitter",
    "shear_x",
    "shear_y",
    "solarize",
    "solarize_add",
    "translate_x",
    "translate_y",
]
