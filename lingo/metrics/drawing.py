"""Parts of pictures, drawn by Pillow: fonts, shortened names, pages of cells."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
"""Colours of right (blue) and wrong (red) predictions."""

_MAX_NAME = 16  # characters


def blank_picture(size: tuple[int, int]) -> Picture.Image:
    """Returns a white picture; `size` is (width, height) in pixels."""
    return Picture.new("RGB", size, "white")


def join_cells(
    cells: Sequence[Picture.Image], *, num_columns: int, margin: int = 0
) -> Picture.Image:
    """Joins cells of equal size into rows of one picture; `margin` pixels follow each cell."""
    width, height = (size + margin for size in cells[0].size)
    num_rows = -(-len(cells) // num_columns)
    page = blank_picture((width * min(len(cells), num_columns), height * num_rows))
    for i, cell in enumerate(cells):
        page.paste(cell, (width * (i % num_columns), height * (i // num_columns)))
    return page


@functools.cache
def load_font(size: int) -> Font:
    """Returns Pillow's default font; `size` is in pixels."""
    return ImageFont.load_default(size)


def largest_font(text: str, *, width: int, size: int) -> Font:
    """Returns the largest font up to a size with which a text fits into a width, in pixels.

    The smallest font of `FONT_SIZES` may be too wide.
    """
    sizes = (size, *(smaller for smaller in FONT_SIZES if smaller < size))
    fonts = (load_font(points) for points in sizes)
    return next((f for f in fonts if f.getlength(text) <= width), load_font(sizes[-1]))


def cut_name(name: str) -> str:
    """Cuts a name to at most 16 characters.

    >>> cut_name("a large white wolf")
    'a large white ..'
    """
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 2]}.."
