"""Rectangles in images, at random positions or in the middle.

Axes: B images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingo.ops import random
from lingo.ops.image.pixel import draw

_TRIES = 10


class Box(NamedTuple):
    """A rectangle of an image, in pixels."""

    row: int  # first row
    column: int  # first column
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Slices of the rows and columns that the box covers in an image [H, W, C]."""
        rows = slice(self.row, self.row + self.height)
        return rows, slice(self.column, self.column + self.width)


def random_boxes(
    sizes: Sequence[tuple[int, int]],
    keys: random.Key,
    *,
    name: str,
    min_area: float,
    max_area: float,
    max_aspect: float,
) -> list[Box | None]:
    """Returns the first of ten random rectangles that fits into each image; None if none fits.

    The area and the logarithm of the aspect ratio are uniform in their ranges. All positions are
    equally likely.

    Args:
        sizes: (height, width) of each image, [B].
        keys: one random key per image; its fields are [B].
        name: name of the calling function; random numbers depend on it.
        min_area: least fraction of the image's area.
        max_area: largest fraction of the image's area.
        max_aspect: largest ratio of the longer to the shorter side.

    Raises:
        ValueError: for areas or a ratio out of range.

    >>> keys = random.key_array(random.fold(random.root_key(0), i) for i in range(2))
    >>> limits = {"min_area": 0.1, "max_area": 0.5, "max_aspect": 2}
    >>> random_boxes([(300, 400), (20, 10)], keys, name="crop", **limits)
    [Box(row=3, column=109, height=178, width=125), Box(row=8, column=3, height=12, width=7)]
    """
    if not 0 < min_area <= max_area <= 1:
        raise ValueError(f"{min_area=} and {max_area=} are not 0 < min_area <= max_area <= 1")
    if not 1 <= max_aspect < math.inf:
        raise ValueError(
            f"{max_aspect=} is not a finite number of at least 1: it is the longer side divided by"
            " the shorter side"
        )
    draws = draw(keys, name, _TRIES, 4).tolist()  # one call for all images: a tenth of the time

    def box(size: tuple[int, int], tries: list[list[float]]) -> Box | None:
        height, width = size
        for area, aspect, down, right in tries:
            pixels = height * width * (min_area + (max_area - min_area) * area)
            ratio = max_aspect ** (2 * aspect - 1)  # of width to height
            rows, columns = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
            if 1 <= rows <= height and 1 <= columns <= width:
                row, column = int(down * (height - rows + 1)), int(right * (width - columns + 1))
                return Box(row, column, rows, columns)
        return None

    return [box(size, tries) for size, tries in zip(sizes, draws, strict=True)]


def center_box(size: tuple[int, int], part: tuple[int, int]) -> Box:
    """Returns the rectangle of size `part` in the middle of an image; sizes are (height, width).

    >>> center_box((5, 6), (2, 2))
    Box(row=1, column=2, height=2, width=2)
    """
    return Box((size[0] - part[0]) // 2, (size[1] - part[1]) // 2, *part)
