"""Parts of pictures: fonts, names that have room, pages of cells. Pillow draws them."""

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
"""Colours of what is right, blue, and wrong, red."""

_MAX_NAME = 16  # characters


def blank_picture(size: tuple[int, int]) -> Picture.Image:
    """Returns a white picture of a size, (width, height) in pixels."""
    return Picture.new("RGB", size, "white")


def join_cells(
    cells: Sequence[Picture.Image], *, num_columns: int, margin: int = 0
) -> Picture.Image:
    """Returns one picture of equally large cells in rows, each with a margin in pixels after it."""
    width, height = (size + margin for size in cells[0].size)
    num_rows = -(-len(cells) // num_columns)
    page = blank_picture((width * min(len(cells), num_columns), height * num_rows))
    for i, cell in enumerate(cells):
        page.paste(cell, (width * (i % num_columns), height * (i // num_columns)))
    return page


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
