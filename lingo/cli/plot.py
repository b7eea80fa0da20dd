"""A curve as text: braille characters of two by four dots, and its values at some points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

BRAILLE = 0x2800
DOTS = np.array([[0x40, 0x80], [0x04, 0x20], [0x02, 0x10], [0x01, 0x08]])  # from the bottom up
INTERVALS = 8  # between the points whose values are written


def curve(x: np.ndarray, y: np.ndarray, *, names: Sequence[str], height: int = 10) -> str:
    """Returns the drawing of a curve without negative values, in `height` lines.

        0.02 ┤⠀⠀⡠⠊⠑⠢⢄⡀
             │⢀⠔⠁⠀⠀⠀⠀⠈⠑⠢⢄⡀
           0 ┤⠁⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠈
        step  0    10   20
        rate  0    0.02 0.01

    x, ascending, and y, finite, are [N] points of any numeric type, N at least 2.
    """
    places = np.unique(np.linspace(x[0], x[-1], INTERVALS + 1).round())
    steps = [f"{place:.0f}" for place in places]
    values = [f"{value:.4g}" for value in np.interp(places, x, y)]
    width = INTERVALS * (max(map(len, (*steps, *values))) + 2)
    top = float(y.max()) or 1.0
    labels = [f"{top:.4g}", *[""] * (height - 2), "0"]
    left = max(map(len, (*labels, *names)))
    lines = [
        f"{label:>{left}} {'┤' if label else '│'}{line}"
        for label, line in zip(labels, _canvas(x, y / top, width, height), strict=True)
    ]
    columns = [round(part * width) for part in (places - x[0]) / (x[-1] - x[0])]
    for name, texts in zip(names, (steps, values), strict=True):
        lines.append(f"{name:>{left}}  {_place_texts(columns, texts)}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _canvas(x: np.ndarray, y: np.ndarray, width: int, height: int) -> list[str]:
    """Returns the lines of a drawing of y, in 0..1, over the range of x; both [N]."""
    fine = np.union1d(x, np.linspace(x[0], x[-1], 8 * width))
    across = np.rint((fine - x[0]) / (x[-1] - x[0]) * (2 * width - 1)).astype(int)
    up = np.rint(np.interp(fine, x, y) * (4 * height - 1)).astype(int)
    cells = np.zeros((height, width), int)
    np.bitwise_or.at(cells, (height - 1 - up // 4, across // 2), DOTS[up % 4, across % 2])
    return ["".join(chr(BRAILLE + dots) if dots else " " for dots in row) for row in cells.tolist()]


def _place_texts(columns: Iterable[int], texts: Iterable[str]) -> str:
    line = ""
    for column, text in zip(columns, texts, strict=True):
        line = line.ljust(column) + text
    return line
