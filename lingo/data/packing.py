"""Packing plans the rows of tokens from the documents' lengths alone.

An epoch has every token of every document exactly once, in rows of T tokens. The end token after a
document counts as one of its tokens; a piece [begin, end) is a run of these. There are two plans:

    Stream   documents one after the other, in a new order each epoch, cut every T tokens:
             row r is tokens [rT, (r+1)T). Only the last row has padding.
    Bins     only documents longer than a row are cut, every T tokens; best-fit decreasing (Johnson
             et al. 1974) puts pieces into rows. The rows are the same in every epoch, and have
             some padding.

Bisection finds any row without the rows before it, so resuming replays nothing.

Axes: N documents, P pieces, T tokens per row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

import numpy as np

from lingo.data.epoch_order import permutation


class Piece(NamedTuple):
    """Tokens begin, ..., end - 1 of a document; its end token counts as the last of its tokens."""

    document: int
    begin: int
    end: int


class Stream:
    """Rows of `row_length` tokens, cut from one stream of documents.

    The lengths of documents, int64 [N], include end tokens; `seed=None` keeps their order.
    """

    def __init__(self, lengths: np.ndarray, *, row_length: int, seed: int | None) -> None:
        self._lengths, self._row_length, self._seed = lengths, row_length, seed
        self._total = int(lengths.sum())
        self.num_rows = -(-self._total // row_length)
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)

    def row(self, epoch: int, index: int) -> list[Piece]:
        """Returns the pieces in row `index` of an epoch, in order."""
        order, ends = self._order(epoch)
        position = index * self._row_length
        stop = min(position + self._row_length, self._total)
        at, pieces = int(np.searchsorted(ends, position, side="right")), []
        while position < stop:
            document, end = int(order[at]), min(int(ends[at]), stop)
            offset = int(ends[at]) - int(self._lengths[document])
            pieces.append(Piece(document, position - offset, end - offset))
            position, at = end, at + 1
        return pieces

    def _draw_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the documents in the epoch's order, and their ends in the stream, int64 [N]."""
        order = np.arange(len(self._lengths))
        if self._seed is not None:
            order = permutation(len(order), seed=self._seed, epoch=epoch, name="documents")
        return order, np.cumsum(self._lengths[order])


class FixedRows:
    """Rows that are the same in every epoch.

    `pieces`, int64 [P, 3], are (document, begin, end). `rows`, int64 [P], is each piece's row, from
    0; no row is empty.
    """

    def __init__(self, pieces: np.ndarray, rows: np.ndarray) -> None:
        self._pieces = pieces[np.argsort(rows, kind="stable")]
        self._ends = np.cumsum(np.bincount(rows))
        self.num_rows = len(self._ends)

    def row(self, epoch: int, index: int) -> list[Piece]:
        """Returns the pieces in row `index`, in order; the same in every epoch."""
        del epoch
        first = self._ends[index - 1] if index else 0
        return [Piece(*map(int, piece)) for piece in self._pieces[first : self._ends[index]]]


Packing: TypeAlias = Stream | FixedRows
"""A plan of rows."""


def pack_bins(lengths: np.ndarray, *, row_length: int) -> FixedRows:
    """Returns the plan `Bins` for documents of some lengths, int64 [N], end tokens included."""
    pieces = cut(lengths, row_length)
    return FixedRows(pieces, best_fit(pieces[:, 2] - pieces[:, 1], row_length))


def cut(lengths: np.ndarray, row_length: int) -> np.ndarray:
    """Returns (document, begin, end) of pieces no longer than a row, int64 [P, 3].

    The lengths of documents, int64 [N], include end tokens.
    """
    counts = -(-lengths // row_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    begin = (np.arange(len(document)) - first) * row_length
    end = np.minimum(begin + row_length, lengths[document])
    return np.stack([document, begin, end], axis=1)


def best_fit(lengths: np.ndarray, row_length: int) -> np.ndarray:
    """Returns each piece's bin, int64 [P]; longest first, each goes to the fullest bin it fits."""
    bins, num_bins = np.empty(len(lengths), np.int64), 0
    open_bins: list[list[int]] = [[] for _ in range(row_length + 1)]  # bins by the room in them
    # Bit r: some bin has room r. The lowest bit from a length up is the fullest bin that fits.
    rooms = 0
    for piece in np.argsort(-lengths, kind="stable"):
        length = int(lengths[piece])
        large_enough = rooms >> length
        if large_enough:
            room = length + (large_enough & -large_enough).bit_length() - 1
            number = open_bins[room].pop()
            rooms ^= 0 if open_bins[room] else 1 << room
        else:
            room, number, num_bins = row_length, num_bins, num_bins + 1
        bins[piece] = number
        open_bins[room - length].append(number)
        rooms |= 1 << (room - length)
    return bins
