"""Detected objects in one picture: images with their true and their predicted boxes.

Axes: N images, H height, W width, C channels, M boxes of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from lingo.metrics.drawing import FONT_SIZES, MARGIN, cut_name, join_cells, load_font
from lingo.metrics.media import Image

TRUTH, PREDICTION = (0, 200, 80), (255, 120, 0)
"""Colours of boxes: green, orange."""

LEGEND = "**Green**: the true boxes. **Orange**: the predicted ones, with their probabilities."

_SIDE = 256  # pixels of the longer side of a shown image, about
_COLUMNS = 4
_LINE = 2  # pixels
_FONT_SIZE = FONT_SIZES[1]


class Boxes(NamedTuple):
    """The boxes of an image."""

    boxes: np.ndarray  # [M, 4], floats: (top, left, bottom, right) in parts of the image
    names: Sequence[str]  # [M]; long ones are cut


def box_image(
    images: np.ndarray, *, truths: Sequence[Boxes], predictions: Sequence[Boxes]
) -> Image:
    """Returns one picture of images with boxes, four in a row.

    Names of truths are above the top of their boxes, those of predictions below the bottom.

    Args:
        images: [N, H, W, C], uint8, or floats from 0 (black) to 1; C is 1 or 3.
        truths: the true boxes of each image.
        predictions: those that were found.
    """
    cells = []
    for image, truth, prediction in zip(images, truths, predictions, strict=True):
        cell = _enlarge(Image(image))
        _draw(cell, truth, colour=TRUTH, is_above=True)
        _draw(cell, prediction, colour=PREDICTION, is_above=False)
        cells.append(cell)
    page = join_cells(cells, num_columns=_COLUMNS, margin=MARGIN)
    return Image(np.array(page), LEGEND)


def _enlarge(image: Image) -> Picture.Image:
    """Returns an image whose longer side has at least about `_SIDE` pixels, of square pixels."""
    picture = Picture.fromarray(np.ascontiguousarray(image.to_rgb()))
    times = max(1, round(_SIDE / max(picture.size)))
    return picture.resize([times * n for n in picture.size], Picture.Resampling.NEAREST)


def _draw(
    picture: Picture.Image, content: Boxes, *, colour: tuple[int, int, int], is_above: bool
) -> None:
    """Draws boxes and their names on a picture."""
    canvas, font = ImageDraw.Draw(picture), load_font(_FONT_SIZE)
    scale = np.array(picture.size[::-1] * 2) - 1
    for (top, left, bottom, right), name in zip(
        np.asarray(content.boxes) * scale, content.names, strict=True
    ):
        canvas.rectangle((left, top, right, bottom), outline=colour, width=_LINE)
        y = max(top, _FONT_SIZE + 1) if is_above else min(bottom, picture.height - _FONT_SIZE - 1)
        where, anchor = (left + 1, y), "lb" if is_above else "la"
        text = {"fill": colour, "font": font, "stroke_width": 1, "stroke_fill": "black"}
        canvas.text(where, cut_name(name), anchor=anchor, **text)
