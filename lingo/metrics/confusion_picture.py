"""A confusion matrix as an image: a row for each label, a column for each prediction.

Axes: K classes, H height, W width.

Colours show the share of a row, so that rare classes are as visible as frequent ones: blue on the
diagonal, what is right; red elsewhere. They grow with the square root of the share, so that a
confusion of one in a hundred can be seen. Grey rows have no examples. Numbers are counts, where
they have room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from lingo.metrics.media import Image
from lingo.metrics.pixel_font import CHARACTER_WIDTH, LINE_HEIGHT, draw_text, text_dots

LEGEND = (
    "A **row** for each label, a **column** for each prediction. **Blue**: right. **Red**: wrong."
    " The darker, the larger the share of the row's examples (by its square root). **Grey**: a"
    " label without examples. Numbers count examples."
)

MAX_CLASSES = 1024
"""The most classes that are drawn."""

_SIDE = 640  # pixels of the matrix, about
_NAMED_CELL = 8  # pixels: the smallest cell that has room for a name beside it
_LARGEST_CELL = 80  # pixels
_MAX_NAMED = 100  # classes: with more, cells are too small for names
_MAX_NAME = 16  # characters
_MARGIN = 6  # pixels
_WHITE, _LINE, _EMPTY = 255, 225, 205
_RIGHT, _WRONG = np.array([8, 48, 107]), np.array([190, 10, 30])


def confusion_image(counts: np.ndarray, *, class_names: Sequence[str] | None = None) -> Image:
    """Returns the image of a confusion matrix.

    Args:
        counts: float [K, K], the weight of each (label, prediction), as `confusion` adds it up.
        class_names: of the K classes; None: their numbers. Long ones are cut.

    Raises:
        ValueError: if the matrix is not square, or another number of names is given.
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
    return Image(_add_names(matrix, [_cut_name(name) for name in names], cell), LEGEND)


def cell_colours(counts: np.ndarray) -> np.ndarray:
    """Returns the colour of each cell, uint8 [K, K, 3], for counts, float [K, K]."""
    totals = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    depth = np.sqrt(np.clip(share, 0, 1))[..., None]
    darkest = np.where(np.eye(len(counts), dtype=bool)[..., None], _RIGHT, _WRONG)
    colours = _WHITE + depth * (darkest - _WHITE)
    return np.where(totals[..., None] > 0, colours, _EMPTY).round().astype(np.uint8)


def _draw_matrix(counts: np.ndarray, cell: int) -> np.ndarray:
    """Returns the cells with their counts, uint8 [K * cell, K * cell, 3]."""
    pixels = cell_colours(counts).repeat(cell, axis=0).repeat(cell, axis=1)
    if cell >= _NAMED_CELL:
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = _LINE
    texts = {
        (i, j): _format_count(float(counts[i, j])) for i, j in zip(*np.nonzero(counts), strict=True)
    }
    scale = _largest_scale(texts.values(), width=cell - 3, height=cell - 3)
    if not scale:
        return pixels
    for (i, j), text in texts.items():
        height, width = (size * scale for size in text_dots(text).shape)
        top, left = i * cell + (cell - height) // 2, j * cell + (cell - width) // 2
        draw_text(pixels, text, top=top, left=left, scale=scale)
    return pixels


def _add_names(matrix: np.ndarray, names: Sequence[str], cell: int) -> np.ndarray:
    """Returns the matrix with names of rows on its left, names of columns above, and titles."""
    side, scale = len(matrix), 2 if cell >= 2 * LINE_HEIGHT else 1
    shown = names if cell >= _NAMED_CELL else []  # else rows are thinner than text
    widths = [text_dots(name).shape[1] * scale for name in shown]
    fits = max(widths, default=0) < cell - 2
    left = 2 * LINE_HEIGHT + 3 * _MARGIN + max(widths, default=0)
    top = left if not fits else 2 * LINE_HEIGHT + 3 * _MARGIN + LINE_HEIGHT * scale
    pixels = np.full([top + side + _MARGIN, left + side + _MARGIN, 3], _WHITE, np.uint8)
    pixels[top : top + side, left : left + side] = matrix
    rotated = np.rot90(pixels, -1)  # a view: text that is drawn into it reads upwards in `pixels`
    bottom = side + _MARGIN  # of the matrix, from the left of `rotated`
    centre = (cell - LINE_HEIGHT * scale) // 2
    for number, (name, width) in enumerate(zip(shown, widths, strict=True)):
        start = number * cell
        draw_text(pixels, name, top=top + start + centre, left=left - _MARGIN - width, scale=scale)
        if fits:
            name_top, name_left = top - LINE_HEIGHT * scale - 2, left + start + (cell - width) // 2
            draw_text(pixels, name, top=name_top, left=name_left, scale=scale)
        else:
            name_top = left + start + centre
            draw_text(rotated, name, top=name_top, left=bottom + _MARGIN, scale=scale)
    _draw_title(pixels, "prediction", start=left, side=side)
    _draw_title(rotated, "label", start=_MARGIN, side=side)
    return pixels


def _draw_title(pixels: np.ndarray, text: str, *, start: int, side: int) -> None:
    """Draws the title of an axis at the top, over the middle of the matrix."""
    scale = 2 if side > 2 * len(text) * CHARACTER_WIDTH else 1
    width = text_dots(text).shape[1] * scale
    draw_text(pixels, text, top=_MARGIN, left=start + max(side - width, 0) // 2, scale=scale)


def _largest_scale(texts: Collection[str], *, width: int, height: int) -> int:
    """Returns the largest size of a dot, 2 or 1, at which all texts fit; 0 if there is none."""
    longest = max((len(text) for text in texts), default=0) * CHARACTER_WIDTH - 1
    return next((s for s in (2, 1) if s * longest <= width and s * LINE_HEIGHT <= height), 0)


def _cut_name(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 2]}.."


def _format_count(count: float) -> str:
    """Returns a count in at most four or five characters: 999, 12k, 1.2M; 0.5 of weights."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            part = count / (1e3 if unit == "k" else size)
            return f"{part:.3g}{unit}" if part < 1000 else f"{math.floor(part)}{unit}"
    return f"{count:.0f}" if count == round(count) or count >= 100 else f"{count:.2g}"
