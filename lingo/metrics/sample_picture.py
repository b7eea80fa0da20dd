"""Classified images in one picture: each above its label and its prediction.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from lingo.metrics.drawing import (
    FONT_SIZES,
    MARGIN,
    RIGHT,
    WRONG,
    blank_picture,
    cut_name,
    join_cells,
    load_font,
)
from lingo.metrics.media import Image

LEGEND = "Below each image its label, and the prediction: **blue** if it is right, **red** if not."

_SIDE = 128  # pixels of the longer side of a shown image, about
_COLUMNS = 8
_FONT_SIZE = FONT_SIZES[1]


def sample_image(
    images: np.ndarray,
    *,
    labels: Sequence[str],
    predictions: Sequence[str],
    is_right: Sequence[bool] | np.ndarray,
) -> Image:
    """Returns one picture of images, eight in a row.

    Args:
        images: [N, H, W, C], uint8, or floats from 0 (black) to 1; C is 1 or 3.
        labels: the first line below each image; long names are cut.
        predictions: the second line.
        is_right: whether each prediction is right, which colours it.
    """
    cells = [
        _draw_cell(_fit(Image(image)), (label, prediction), RIGHT if right else WRONG)
        for image, label, prediction, right in zip(
            images, labels, predictions, is_right, strict=True
        )
    ]
    return Image(np.array(join_cells(cells, num_columns=_COLUMNS)), LEGEND)


def _fit(image: Image) -> Picture.Image:
    """Returns an image whose longer side is about `_SIDE` pixels; small ones have square pixels."""
    picture = Picture.fromarray(np.ascontiguousarray(image.to_rgb()))
    if (times := _SIDE // max(picture.size)) > 1:
        return picture.resize([times * n for n in picture.size], Picture.Resampling.NEAREST)
    picture.thumbnail((_SIDE, _SIDE))
    return picture


def _draw_cell(picture: Picture.Image, lines: tuple[str, str], colour: np.ndarray) -> Picture.Image:
    """Returns an image with two lines below it, the second one in a colour, [3]."""
    font, line_height = load_font(_FONT_SIZE), _FONT_SIZE + MARGIN // 2
    width = max(picture.width, _SIDE) + MARGIN
    cell = blank_picture((width, MARGIN + picture.height + 2 * line_height + MARGIN))
    cell.paste(picture, ((width - picture.width) // 2, MARGIN))
    for i, (text, fill) in enumerate(zip(lines, ((0, 0, 0), tuple(colour.tolist())), strict=True)):
        where = (width / 2, MARGIN + picture.height + (i + 0.5) * line_height + 2)
        ImageDraw.Draw(cell).text(where, cut_name(text), fill=fill, font=font, anchor="mm")
    return cell
