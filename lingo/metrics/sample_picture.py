"""Images in one picture: each above its label and prediction, or with true and predicted objects.

Axes: N images, H height, W width, C channels, M boxes of an image, S bins of a mask along each
side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from lingo.metrics import drawing
from lingo.metrics.mask import paste_masks
from lingo.metrics.media import Image

LEGEND = "Below each image its label, and the prediction: **blue** if it is right, **red** if not."

_SIDE = 128  # pixels of the longer side of a shown image, about
_COLUMNS = 4  # TensorBoard shows a picture some 300 pixels wide: more columns have tiny captions
_FONT_SIZE = 20

TRUTH, PREDICTION = (0, 200, 80), (255, 120, 0)
"""Colours of boxes: green, orange."""

BOX_LEGEND = "**Green**: the true boxes. **Orange**: the predicted ones, with their probabilities."

MASK_LEGEND = f"{BOX_LEGEND} Masks are lighter areas of the same colours."

_BOX_SIDE = 256  # pixels of the longer side of a shown image, about
_BOX_COLUMNS = 2
_LINE = 2  # pixels
_MASK_SHARE = 0.4  # of the colour in a mask's pixels


def sample_image(
    images: np.ndarray,
    *,
    labels: Sequence[str],
    predictions: Sequence[str],
    is_right: Sequence[bool] | np.ndarray,
) -> Image:
    """Returns one picture of images, four in a row.

    Args:
        images: [N, H, W, C], uint8, or floats from 0 (black) to 1; C is 1 or 3.
        labels: the first line below each image; long names are cut.
        predictions: the second line.
        is_right: whether each prediction is right; it sets the prediction's colour.
    """
    cells = [
        _draw_cell(
            _fit(Image(image)), (label, prediction), drawing.RIGHT if right else drawing.WRONG
        )
        for image, label, prediction, right in zip(
            images, labels, predictions, is_right, strict=True
        )
    ]
    return Image(np.array(drawing.join_cells(cells, num_columns=_COLUMNS)), LEGEND)


def _fit(image: Image) -> Picture.Image:
    """Resizes the longer side to about `_SIDE` pixels; small images get larger square pixels."""
    picture = Picture.fromarray(np.ascontiguousarray(image.to_rgb()))
    if (times := _SIDE // max(picture.size)) > 1:
        return picture.resize([times * n for n in picture.size], Picture.Resampling.NEAREST)
    picture.thumbnail((_SIDE, _SIDE))
    return picture


def _draw_cell(picture: Picture.Image, lines: tuple[str, str], colour: np.ndarray) -> Picture.Image:
    """Returns an image with two lines below it, the second one in a colour, [3]."""
    line_height = _FONT_SIZE + drawing.MARGIN // 2
    width = max(picture.width, _SIDE) + drawing.MARGIN
    cell = drawing.blank_picture(
        (width, drawing.MARGIN + picture.height + 2 * line_height + drawing.MARGIN)
    )
    cell.paste(picture, ((width - picture.width) // 2, drawing.MARGIN))
    for i, (text, fill) in enumerate(zip(lines, ((0, 0, 0), tuple(colour.tolist())), strict=True)):
        position = (width / 2, drawing.MARGIN + picture.height + (i + 0.5) * line_height + 2)
        name = drawing.cut_name(text)
        font = drawing.largest_font(name, width=width, size=_FONT_SIZE)
        ImageDraw.Draw(cell).text(position, name, fill=fill, font=font, anchor="mm")
    return cell


# ---- objects -------------------------------------------------------------------------------------


class Boxes(NamedTuple):
    """The objects of an image."""

    boxes: np.ndarray  # [M, 4], floats: (top, left, bottom, right) as fractions of the image
    names: Sequence[str]  # [M]; long names are cut
    masks: np.ndarray | None = None  # [M, S, S], in 0..1, inside the boxes; None: no masks


def box_image(
    images: np.ndarray, *, truths: Sequence[Boxes], predictions: Sequence[Boxes]
) -> Image:
    """Returns one picture of images with boxes, two in a row, and masks where there are any.

    The names of true boxes are above their tops, the names of predicted boxes below their bottoms.

    Args:
        images: [N, H, W, C], uint8, or floats from 0 (black) to 1; C is 1 or 3.
        truths: the true boxes of each image.
        predictions: the predicted boxes of each image.
    """
    cells = []
    for image, truth, prediction in zip(images, truths, predictions, strict=True):
        cell = _enlarge(Image(image))
        for objects, colour in ((truth, TRUTH), (prediction, PREDICTION)):
            cell = _draw_masks(cell, objects, colour=colour)
        _draw_boxes(cell, truth, colour=TRUTH, is_above=True)
        _draw_boxes(cell, prediction, colour=PREDICTION, is_above=False)
        cells.append(cell)
    page = drawing.join_cells(cells, num_columns=_BOX_COLUMNS, margin=drawing.MARGIN)
    has_masks = any(one.masks is not None for one in (*truths, *predictions))
    return Image(np.array(page), MASK_LEGEND if has_masks else BOX_LEGEND)


def _enlarge(image: Image) -> Picture.Image:
    """Returns an image whose longer side has about `_BOX_SIDE` square pixels, or more."""
    picture = Picture.fromarray(np.ascontiguousarray(image.to_rgb()))
    times = max(1, round(_BOX_SIDE / max(picture.size)))
    return picture.resize([times * n for n in picture.size], Picture.Resampling.NEAREST)


def _draw_masks(
    picture: Picture.Image, content: Boxes, *, colour: tuple[int, int, int]
) -> Picture.Image:
    """Returns a picture with a colour over the pixels of masks."""
    if content.masks is None or not len(content.masks):
        return picture
    pixels, size = np.asarray(picture), (picture.height, picture.width)
    is_covered = np.any(paste_masks(content.masks, content.boxes, size=size), axis=0)[..., None]
    mixed = np.rint((1 - _MASK_SHARE) * pixels + _MASK_SHARE * np.array(colour))
    return Picture.fromarray(np.where(is_covered, mixed, pixels).astype(np.uint8))


def _draw_boxes(
    picture: Picture.Image, content: Boxes, *, colour: tuple[int, int, int], is_above: bool
) -> None:
    """Draws boxes and their names on a picture."""
    canvas, font = ImageDraw.Draw(picture), drawing.load_font(_FONT_SIZE)
    scale = np.array(picture.size[::-1] * 2) - 1
    for (top, left, bottom, right), name in zip(
        np.asarray(content.boxes) * scale, content.names, strict=True
    ):
        canvas.rectangle((left, top, right, bottom), outline=colour, width=_LINE)
        y = max(top, _FONT_SIZE + 1) if is_above else min(bottom, picture.height - _FONT_SIZE - 1)
        position, anchor = (left + 1, y), "lb" if is_above else "la"
        text = {"fill": colour, "font": font, "stroke_width": 1, "stroke_fill": "black"}
        canvas.text(position, drawing.cut_name(name), anchor=anchor, **text)
