"""The history of vectors over a run: for each name a matrix with a bounded number of columns.

Axes: E elements of a vector, R columns.

A column is a report until there are more than MAX_COLUMNS. Then every two neighbours are replaced
by their mean, and so on: a column is the mean of 2^k reports, the last one of fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

MAX_COLUMNS = 256

_DIGITS = 4  # of a number in a row: a picture shows fewer


class _Column(NamedTuple):
    """The number of some neighbouring reports, and the mean of their [E] vectors, by name."""

    num_reports: int
    vectors: dict[str, np.ndarray]

    def merge(self, other: _Column) -> _Column:
        """Returns the mean of both; of a vector of two sizes, the later one."""
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
        self._size = 1  # reports in a column that is full

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a report, name -> list of numbers, None or nan where unknown; ignores the rest."""
        vectors = {name: vector for name in row if (vector := _vector(row[name])) is not None}
        column = _Column(1, vectors)
        if self._columns and self._columns[-1].num_reports < self._size:
            column = self._columns.pop().merge(column)
        self._columns.append(column)
        if len(self._columns) > MAX_COLUMNS:
            self._halve()

    def matrices(self) -> dict[str, np.ndarray]:
        """Returns name -> float64 [E, R] with one R for all; what is unknown is nan.

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
        """Merges every two neighbours, but not the last column, which has one report."""
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
    except (OverflowError, TypeError, ValueError):  # this program did not write it
        return None
    return vector if vector is not None and vector.ndim == 1 and vector.size else None
