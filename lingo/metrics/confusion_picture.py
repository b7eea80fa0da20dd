"""A confusion matrix as an image: a row for each label, a column for each prediction.

Axes: K classes, H height, W width.

A cell's colour shows its share of the row, so that rare classes are as visible as frequent ones:
blue on the diagonal (right), red elsewhere (wrong). The colour darkens with the square root of the
share, so that one confusion in a hundred can be seen. Grey rows have no examples. The numbers in
cells are counts, and are left out if they have no room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw

from lingo.metrics import drawing
from lingo.metrics.media import Image

LEGEND = (
    "A **row** for each label, a **column** for each prediction. **Blue**: right. **Red**: wrong."
    " The darker, the larger the share of the row's examples (by its square root). **Grey**: a"
    " label without examples. Numbers count examples."
)

MAX_CLASSES = 1024
"""The most classes that are drawn."""

_SIDE = 640  # pixels: approximate side of the matrix
_NAMED_CELL = 10  # pixels: the smallest cell next to which a name has room
_LARGEST_CELL = 80  # pixels
_MAX_NAMED = 100  # classes: with more, cells are too small for names
_WHITE, _LINE, _EMPTY = 255, 225, 205


def confusion_image(counts: np.ndarray, *, class_names: Sequence[str] | None = None) -> Image:
    """Returns the image of a confusion matrix.

    Args:
        counts: float [K, K], the weight of each (label, prediction) pair, as summed by `confusion`.
        class_names: names of the K classes; None: their numbers. Long names are cut.

    Raises:
        ValueError: if the matrix is not square, or the number of names is not K.
    """
    counts = np.asarray(counts, np.float64)
    num_classes = len(counts)
    if counts.ndim != 2 or counts.shape[1] != num_classes:
        raise ValueError(f"a confusion matrix is [K, K], this one is {list(counts.shape)}")
    if class_names is not None and len(class_names) != num_classes:
        raise ValueError(
            f"class_names has {len(class_names)} names, but there are {num_classes} classes"
        )
    names = [str(i) for i in range(num_classes)] if class_names is None else list(class_names)
    cell = min(max(_SIDE // num_classes, 1), _LARGEST_CELL)
    if num_classes <= _MAX_NAMED:
        cell = max(cell, _NAMED_CELL)
    matrix = _draw_matrix(counts, cell)
    page = _add_names(matrix, [drawing.cut_name(name) for name in names], cell)
    return Image(np.array(page), LEGEND)


def confusion_colours(counts: np.ndarray) -> np.ndarray:
    """Returns the colour of each cell, uint8 [K, K, 3], for counts, float [K, K]."""
    totals = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    depth = np.sqrt(np.clip(share, 0, 1))[..., None]
    darkest = np.where(np.eye(len(counts), dtype=bool)[..., None], drawing.RIGHT, drawing.WRONG)
    colours = _WHITE + depth * (darkest - _WHITE)
    return np.where(totals[..., None] > 0, colours, _EMPTY).round().astype(np.uint8)


def _draw_matrix(counts: np.ndarray, cell: int) -> Picture.Image:
    """Draws the cells, and their counts if all counts have room."""
    colours = confusion_colours(counts)
    pixels = colours.repeat(cell, axis=0).repeat(cell, axis=1)
    if cell >= _NAMED_CELL:
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = _LINE
    matrix = Picture.fromarray(pixels)
    texts = {
        (i, j): _short_count(float(counts[i, j])) for i, j in zip(*np.nonzero(counts), strict=True)
    }
    if (font := _largest_font(texts.values(), size=cell - 3)) is None:
        return matrix
    for (i, j), text in texts.items():
        shade = "black" if colours[i, j].mean() >= 128 else "white"
        position = ((j + 0.5) * cell, (i + 0.5) * cell)
        ImageDraw.Draw(matrix).text(position, text, fill=shade, font=font, anchor="mm")
    return matrix


def _add_names(matrix: Picture.Image, names: Sequence[str], cell: int) -> Picture.Image:
    """Returns the matrix with row names on its left, column names above it, and both titles."""
    side, title = matrix.width, drawing.FONT_SIZES[0] + drawing.MARGIN
    shown = names if cell >= _NAMED_CELL else []  # else rows are thinner than text
    font = drawing.load_font(
        max((size for size in drawing.FONT_SIZES if size < cell), default=drawing.FONT_SIZES[-1])
    )
    width = math.ceil(max(map(font.getlength, shown), default=0)) + drawing.MARGIN
    rows = _draw_lines(shown, (width, side), font=font, anchor="rm")
    columns = _draw_lines(shown, (width, side), font=font, anchor="lm")
    columns = columns.transpose(Picture.Transpose.ROTATE_90)  # they read upwards
    if width <= cell:  # short names need not be turned
        columns = _draw_columns(shown, (side, title), font=font)
    left, top = title + drawing.MARGIN + rows.width, title + drawing.MARGIN + columns.height
    page = drawing.blank_picture((left + side + drawing.MARGIN, top + side + drawing.MARGIN))
    page.paste(matrix, (left, top))
    page.paste(rows, (left - rows.width, top))
    page.paste(columns, (left, top - columns.height))
    page.paste(_draw_title("prediction", (side, title)), (left, drawing.MARGIN))
    label = _draw_title("label", (side, title)).transpose(Picture.Transpose.ROTATE_90)
    page.paste(label, (drawing.MARGIN, top))
    return page


def _draw_lines(
    names: Sequence[str], size: tuple[int, int], *, font: drawing.Font, anchor: str
) -> Picture.Image:
    """Draws names one below the other, each in the middle of its row of cells.

    `anchor` is "rm", at the right, or "lm", at the left; `size` is (width, height).
    """
    picture = drawing.blank_picture(size)
    x = size[0] - drawing.MARGIN // 2 if anchor == "rm" else drawing.MARGIN // 2
    for number, name in enumerate(names):
        position = (x, (number + 0.5) * size[1] / len(names))
        ImageDraw.Draw(picture).text(position, name, fill="black", font=font, anchor=anchor)
    return picture


def _draw_columns(
    names: Sequence[str], size: tuple[int, int], *, font: drawing.Font
) -> Picture.Image:
    """Draws names side by side, each above its column of cells; `size` is (width, height)."""
    picture = drawing.blank_picture(size)
    for number, name in enumerate(names):
        position = ((number + 0.5) * size[0] / len(names), size[1] - drawing.MARGIN)
        ImageDraw.Draw(picture).text(position, name, fill="black", font=font, anchor="ms")
    return picture


def _draw_title(text: str, size: tuple[int, int]) -> Picture.Image:
    """Draws the title of an axis in the middle of a picture of `size`, (width, height)."""
    picture, font = drawing.blank_picture(size), drawing.load_font(drawing.FONT_SIZES[0])
    position = (size[0] / 2, size[1] / 2)
    ImageDraw.Draw(picture).text(position, text, fill="black", font=font, anchor="mm")
    return picture


def _largest_font(texts: Collection[str], *, size: int) -> drawing.Font | None:
    """Returns the largest font with which each text fits into a square, None if no font does."""
    for points in drawing.FONT_SIZES:
        font = drawing.load_font(points)
        if points <= size and all(font.getlength(text) <= size for text in texts):
            return font
    return None


def _short_count(count: float) -> str:
    """Returns a count in at most four or five characters: 999, 12k, 1.2M; 0.5 with weights."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            part = count / (1e3 if unit == "k" else size)
            return f"{part:.3g}{unit}" if part < 1000 else f"{math.floor(part)}{unit}"
    return f"{count:.0f}" if count == round(count) or count >= 100 else f"{count:.2g}"
