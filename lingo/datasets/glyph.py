"""Drawings of single characters of a font.

Axes: H height, W width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Parts of an image's height:
_EM = 0.6  # size of the font; the widest letter has 1.1 times this width
_BASELINE = 0.68  # baseline's distance from the top; "i" and "j" are about as far from the rims
_WAIST = 0.22  # half the height of capitals, where a slant moves nothing
_OVERSAMPLING = 2  # dots that are drawn per pixel, along each side


class Change(NamedTuple):
    """How a drawing differs from the plain drawing."""

    x: float = 0.0  # shift to the right, as a part of the image's width
    y: float = 0.0  # shift downwards, as a part of the image's height
    scale: float = 1.0  # factor of the size; the baseline stays where it is
    slant: float = 0.0  # tangent of the angle by which upright strokes lean to the right


def font_size(size: int) -> float:
    """Returns the size of the font for images of H = W = size pixels, in dots of a drawing."""
    return _EM * _OVERSAMPLING * size


def draw_glyph(
    font: ImageFont.FreeTypeFont, character: str, *, size: int, change: Change
) -> np.ndarray:
    """Returns a character in white on black, uint8 [size, size].

    The baseline is at the same height for all characters; the ink is centred from left to right.

    Args:
        font: a font of the size `font_size(size)`.
        character: a character that the font has.
        size: H and W, in pixels.
        change: shift, scale and slant.
    """
    side = _OVERSAMPLING * size
    middle, baseline = side / 2, round(_BASELINE * size) * _OVERSAMPLING
    plain = Image.new("L", (side + side // 2, side))
    ImageDraw.Draw(plain).text((middle, baseline), character, fill=255, font=font, anchor="ls")
    left, _, right, _ = cast("tuple[int, ...]", plain.getbbox())  # None without ink
    zoom = 1 / change.scale
    shear = zoom * change.slant
    x, y = middle + change.x * side, baseline + change.y * side
    waist = y - change.scale * _WAIST * side
    # Pillow wants the inverse transform: from a dot of the result to a dot of the plain drawing.
    to_x = (zoom, shear, (left + right) / 2 - zoom * x - shear * waist)
    to_y = (0.0, zoom, baseline - zoom * y)
    changed = plain.transform(
        (side, side), Image.Transform.AFFINE, to_x + to_y, Image.Resampling.BILINEAR
    )
    return np.asarray(changed.reduce(_OVERSAMPLING))
