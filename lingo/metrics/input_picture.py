"""Metrics of several inputs, such as languages, side by side: as a table and as bars."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from PIL import ImageDraw

from lingo.metrics import drawing
from lingo.metrics.media import Image, Media, Table

_FONT_SIZE = 13  # pixels
_ROW_HEIGHT = 20
_COLUMN_WIDTH = 128  # a name, or the bar of a metric at its largest value
_BAR = "#6baed6"

_LEGEND = (
    "A **row** for each input, a **column** for each metric. A bar is as long as the metric's share"
    " of its largest value in the column."
)


def summarize_inputs(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Media]:
    """Returns a table and a picture of the metrics that all inputs have.

    `metrics` is {input: {metric: value}}. The result is empty if inputs share no metric.
    """
    rows = list(metrics.values())
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    if not shared:
        return {}
    columns = {name: [row[name] for row in rows] for name in shared}
    return {
        "inputs/table": Table({"input": list(metrics), **columns}),
        "inputs/picture": Image(_draw(list(metrics), columns), _LEGEND),
    }


def _draw(names: list[str], columns: Mapping[str, list[float]]) -> np.ndarray:
    """Draws names and bars with their values, uint8 [H, W, 3]."""
    step = _COLUMN_WIDTH + drawing.MARGIN
    size = (drawing.MARGIN + step * (1 + len(columns)), _ROW_HEIGHT * (1 + len(names)))
    picture, font = drawing.blank_picture(size), drawing.load_font(_FONT_SIZE)
    canvas = ImageDraw.Draw(picture)

    def write(text: str, column: int, row: int) -> None:
        position = (drawing.MARGIN + step * column, _ROW_HEIGHT * row + _ROW_HEIGHT // 2)
        canvas.text(position, text, fill="black", font=font, anchor="lm")

    for row, name in enumerate(names, 1):
        write(drawing.cut_name(name), 0, row)
    for column, (metric, values) in enumerate(columns.items(), 1):
        write(drawing.cut_name(metric), column, 0)
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        left = drawing.MARGIN + step * column
        for row, value in enumerate(values, 1):
            if largest and math.isfinite(value):
                width, top = round(_COLUMN_WIDTH * abs(value) / largest), _ROW_HEIGHT * row
                box = (left, top + 2, left + width, top + _ROW_HEIGHT - 2)
                canvas.rectangle(box, fill=_BAR)
            write(f"{value:.4g}", column, row)
    return np.asarray(picture)
