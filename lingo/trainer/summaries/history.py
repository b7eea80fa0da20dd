"""How vectors changed over a run: by name a matrix of few columns, however long the run was.

Axes: E elements of a vector, R columns.

A column is a report, until there are more than MAX_COLUMNS. Then every two neighbours become one,
their mean, and so on: a column is always the mean of 2^k reports, but the last of fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

MAX_COLUMNS = 256

_DIGITS = 4  # of a number in a row: a picture tells fewer apart


class _Column(NamedTuple):
    """Neighbouring reports: how many, and by name the mean of their vectors."""

    num_reports: int
    vectors: dict[str, np.ndarray]

    def joined(self, other: _Column) -> _Column:
        """Returns the mean of both; what only one of them has, or in another size, is the later."""
        num, vectors = self.num_reports + other.num_reports, self.vectors | other.vectors
        for name, own in self.vectors.items():
            if own.shape == vectors[name].shape and name in other.vectors:
                total = self.num_reports * own + other.num_reports * other.vectors[name]
                vectors[name] = total / num
        return _Column(num, vectors)


class History:
    """Vectors by name, of one report after the other."""

    def __init__(self) -> None:
        """Begins without any report."""
        self._columns: list[_Column] = []
        self._size = 1  # reports in a column that is full

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a report.

        Args:
            row: by name a list of numbers, of which None and nan are unknown. What is no such list,
                such as the step, is passed over.
        """
        vectors = {name: vector for name in row if (vector := _vector(row[name])) is not None}
        column = _Column(1, vectors)
        if self._columns and self._columns[-1].num_reports < self._size:
            column = self._columns.pop().joined(column)
        self._columns.append(column)
        if len(self._columns) > MAX_COLUMNS:
            self._halve()

    def matrices(self) -> dict[str, np.ndarray]:
        """Returns by name float64 [E, R]; R is the same for all, and what is unknown is nan.

        E is that of the last report of the name, and columns of another size are unknown.
        """
        sizes = {name: len(v) for column in self._columns for name, v in column.vectors.items()}
        return {name: self._matrix(name, size) for name, size in sizes.items()}

    def _matrix(self, name: str, size: int) -> np.ndarray:
        found = np.full([size, len(self._columns)], np.nan)
        for i, column in enumerate(self._columns):
            vector = column.vectors.get(name)
            if vector is not None and len(vector) == size:
                found[:, i] = vector
        return found

    def _halve(self) -> None:
        """Makes one of every two neighbours; the last, of one report, stays as it is."""
        *pairs, last = self._columns
        self._columns = [a.joined(b) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        self._columns.append(last)
        self._size *= 2


def rounded(vector: np.ndarray) -> list[float]:
    """Returns the numbers of a vector [E] as a row has them."""
    return [float(f"{number:.{_DIGITS}g}") for number in vector.tolist()]


def _vector(value: Any) -> np.ndarray | None:
    """Returns float64 [E], or None for what is no list of numbers."""
    try:
        found = np.array(value, np.float64) if isinstance(value, list) else None
    except (OverflowError, TypeError, ValueError):  # somebody else has written it
        return None
    return found if found is not None and found.ndim == 1 and found.size else None
