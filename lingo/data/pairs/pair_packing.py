"""Packing of pairs: rows with room for sources and for targets.

Best-fit decreasing as in `Bins`, with two lengths: the longest pair first (by the side that takes
the larger share of its row), into the row with the least room left that both sides fit into. Rooms
are compared first by the side that takes the larger share of rows over all pairs. This is vector
bin packing; Panigrahy et al. 2011 compare such rules.

Axes: P pairs, S tokens per source row, T tokens per target row.
"""

from __future__ import annotations

import numpy as np


def best_fit_pairs(lengths: np.ndarray, row_lengths: tuple[int, int]) -> np.ndarray:
    """Returns each pair's row, int64 [P]; lengths, int64 [P, 2], are at most S and T."""
    shares = lengths / np.array(row_lengths)
    scarce = int(np.argmax(shares.sum(axis=0)))
    order = [scarce, 1 - scarce]
    sizes, limits = lengths[:, order].tolist(), [row_lengths[side] for side in order]
    rows, rooms = np.empty(len(sizes), np.int64), _Rooms()
    num_rows = 0
    for i in np.argsort(-shares.max(axis=1), kind="stable").tolist():
        first, second = sizes[i]
        row = rooms.take(first, second)
        if row is None:
            row, num_rows = (num_rows, *limits), num_rows + 1
        rows[i], first_room, second_room = row
        rooms.put(row[0], first_room - first, second_room - second)
    return rows


class _Rooms:
    """Rows that are not full, by the room that is left for each side.

    Bit r of `_first` is set if some row has room r for the first side; bit r of `_second[f]` if a
    row with room f for the first has room r for the second. The lowest bit from a length up is the
    fullest row that fits.
    """

    def __init__(self) -> None:
        self._first = 0
        self._second: dict[int, int] = {}
        self._numbers: dict[tuple[int, int], list[int]] = {}

    def put(self, number: int, first: int, second: int) -> None:
        """Adds a row; one without room on a side is dropped, because no pair fits into it."""
        if first and second:
            self._first |= 1 << first
            self._second[first] = self._second.get(first, 0) | 1 << second
            self._numbers.setdefault((first, second), []).append(number)

    def take(self, first: int, second: int) -> tuple[int, int, int] | None:
        """Removes the fullest row that both lengths fit into; returns its number and two rooms."""
        waiting = self._first >> first << first
        while waiting:
            first_room = _lowest_bit(waiting)
            fitting = self._second[first_room] >> second << second
            if fitting:
                return self._remove(first_room, _lowest_bit(fitting))
            waiting &= waiting - 1
        return None

    def _remove(self, first: int, second: int) -> tuple[int, int, int]:
        numbers = self._numbers[first, second]
        number = numbers.pop()
        if not numbers:
            self._second[first] ^= 1 << second
        if not self._second[first]:
            self._first ^= 1 << first
        return number, first, second


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
