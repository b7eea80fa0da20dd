"""Text in pictures: fonts, and names that have room. Pillow draws them."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
from PIL import Image as Picture
from PIL import ImageFont

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

FONT_SIZES = (16, 13, 10, 8)
"""Sizes of text, in pixels, the largest first."""
MARGIN = 6
"""Pixels between the parts of a picture."""
RIGHT, WRONG = np.array([8, 48, 107]), np.array([190, 10, 30])
"""Colours of what is right, blue, and wrong, red."""

_MAX_NAME = 16  # characters


def blank_picture(size: tuple[int, int]) -> Picture.Image:
    """Returns a white picture of a size, (width, height) in pixels."""
    return Picture.new("RGB", size, "white")


@functools.cache
def load_font(size: int) -> Font:
    """Returns the font that Pillow brings, in a size in pixels."""
    return ImageFont.load_default(size)


def cut_name(name: str) -> str:
    """Returns a name of at most 16 characters.

    >>> cut_name("a large white wolf")
    'a large white ..'
    """
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 2]}.."
