"""The history of vectors over a run, and images of it, such as of the load of experts.

Axes: E elements of a vector, R columns, from the first report to the last; H height, W width.

Each name has a matrix with a bounded number of columns. At first a column is one report. Whenever
there are more than MAX_COLUMNS columns, every two neighbours are replaced by their mean. So
a column is the mean of 2^k reports; the last column may have fewer reports.

A cell of an image shows an element relative to the mean of all elements at that time: white if it
is equal, red if it is larger, blue if it is smaller. The scale is logarithmic and ends at a quarter
of the mean and at four times the mean. Grey marks unknown values and the gap between two layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_COLUMNS = 256

_DIGITS = 4  # digits of a number in vectors.jsonl; an image shows fewer

LEGEND = (
    "From the first report on the left to this step on the right: the share of each element, the"
    " first above, relative to the mean of all. **White**: equal. **Red**: more, darkest from four"
    " times on. **Blue**: less, darkest below a quarter. **Grey**: unknown."
)

_OCTAVES = (-2, -1, 0, 1, 2)  # base-2 logarithm of an element relative to the mean
_COLOURS = np.array([(9, 29, 88), (52, 126, 186), (250, 250, 250), (217, 95, 50), (103, 6, 18)])
_GREY = 128

_WIDTH, _HEIGHT = 768, 256  # most pixels of a layer's image, unless it has more cells than that
_OVERVIEW_HEIGHT = 1024
_MAX_CELL = 16  # pixels
_GAP = 3  # pixels between layers
_MAX_ROWS = 4096  # if there are more elements, neighbours share a row of pixels


class _Column(NamedTuple):
    """The number of some neighbouring reports, and the mean of their [E] vectors, by name."""

    num_reports: int
    vectors: dict[str, np.ndarray]

    def merge(self, other: _Column) -> _Column:
        """Returns the mean of both columns; of a vector that has changed its size, `other`'s."""
        num, vectors = self.num_reports + other.num_reports, self.vectors | other.vectors
        for name, own in self.vectors.items():
            if own.shape == vectors[name].shape and name in other.vectors:
                total = self.num_reports * own + other.num_reports * other.vectors[name]
                vectors[name] = total / num
        return _Column(num, vectors)


class History:
    """The vectors of all reports, by name."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._size = 1  # number of reports in a full column

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row of vectors.jsonl: name -> list of numbers, with None or nan where unknown.

        Entries of other types are ignored.
        """
        vectors = {name: vector for name in row if (vector := _vector(row[name])) is not None}
        column = _Column(1, vectors)
        if self._columns and self._columns[-1].num_reports < self._size:
            column = self._columns.pop().merge(column)
        self._columns.append(column)
        if len(self._columns) > MAX_COLUMNS:
            self._halve()

    def matrices(self) -> dict[str, np.ndarray]:
        """Returns name -> float64 [E, R], with the same R for all names; unknown values are nan.

        E is the size in the name's last report; columns of another size are unknown.
        """
        sizes = {name: len(v) for column in self._columns for name, v in column.vectors.items()}
        return {name: self._matrix(name, size) for name, size in sizes.items()}

    def _matrix(self, name: str, size: int) -> np.ndarray:
        matrix = np.full([size, len(self._columns)], np.nan)
        for i, column in enumerate(self._columns):
            vector = column.vectors.get(name)
            if vector is not None and len(vector) == size:
                matrix[:, i] = vector
        return matrix

    def _halve(self) -> None:
        """Merges every two neighbouring columns, except the last column, which has one report."""
        *pairs, last = self._columns
        self._columns = [a.merge(b) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        self._columns.append(last)
        self._size *= 2


def round_digits(vector: np.ndarray) -> list[float]:
    """Returns the numbers of a float vector [E] with the four digits that a row keeps."""
    return [float(f"{number:.{_DIGITS}g}") for number in vector.tolist()]


def _vector(value: Any) -> np.ndarray | None:
    """Returns float64 [E], or None for a value that is not a list of numbers."""
    try:
        vector = np.array(value, np.float64) if isinstance(value, list) else None
    except (OverflowError, TypeError, ValueError):  # lingo did not write this value
        return None
    return vector if vector is not None and vector.ndim == 1 and vector.size else None


# ---- images --------------------------------------------------------------------------------------


def cell_colours(matrix: np.ndarray) -> np.ndarray:
    """Returns the colour of each cell, uint8 [E, R, 3]: red, green, blue.

    `matrix` is float [E, R], nan where unknown; a column of zeros counts as unknown.
    """
    mean = matrix.mean(axis=0)
    is_known = (mean > 0) & np.isfinite(mean)
    ratio = np.divide(matrix, mean, out=np.ones_like(matrix), where=is_known)
    octaves = np.log2(np.clip(ratio, 2.0 ** _OCTAVES[0], 2.0 ** _OCTAVES[-1]))
    channels = [np.interp(octaves, _OCTAVES, channel) for channel in _COLOURS.T]
    colours = np.where(is_known[:, None], np.stack(channels, axis=-1), _GREY)
    return colours.round().astype(np.uint8)


def vector_image(matrix: np.ndarray) -> np.ndarray:
    """Returns the image, uint8 [H, W, 3], of one vector over time, float [E, R]."""
    return _draw([matrix], _HEIGHT)


def overview_image(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one image, uint8 [H, W, 3], of several vectors over time: float [E, R], equal R."""
    return _draw(matrices, _OVERVIEW_HEIGHT)


def _draw(matrices: Sequence[np.ndarray], height: int) -> np.ndarray:
    num_elements, num_columns = sum(map(len, matrices)), matrices[0].shape[1]
    per_row = -(-num_elements // _MAX_ROWS)
    cell_height = min(max(height // num_elements, 1), _MAX_CELL)
    cell_width = min(max(_WIDTH // num_columns, 1), _MAX_CELL)
    gap = np.full([_GAP, cell_width * num_columns, 3], _GREY, np.uint8)
    strips = []
    for matrix in matrices:
        colours = cell_colours(_join_neighbours(matrix, per_row))
        strips += [gap, colours.repeat(cell_height, axis=0).repeat(cell_width, axis=1)]
    return np.concatenate(strips[1:])


def _join_neighbours(matrix: np.ndarray, count: int) -> np.ndarray:
    """Returns the means of every `count` neighbouring rows of [E, R]; the last may have fewer."""
    starts = np.arange(0, len(matrix), count)
    counts = np.diff(np.append(starts, len(matrix)))
    return np.add.reduceat(matrix, starts, axis=0) / counts[:, None]
