"""Pairs of texts, packed into rows: the target is predicted from the source.

Axes: B examples (rows), S tokens per source row, T tokens per target row, P pairs.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.params import REQUIRED
from lingo.data.files import DataError
from lingo.data.index import Index, Progress, open_index
from lingo.data.packing import FixedRows, Packing, best_fit, permutation
from lingo.data.pairs.pair import SEPARATOR, Pair, PairSource, PairTokenizer
from lingo.data.pairs.paired_input import Lengths, PairedInput, Row
from lingo.data.prompt import TextPair


class PairInput(PairedInput):
    """Rows of packed pairs. An epoch has every pair once.

    An end token follows every source and every target. A side that is too long keeps its beginning.
    A cut source still gets an end; a cut target gets none, so that models do not learn to stop
    there.
    """

    source: PairSource = REQUIRED  # where the pairs are
    source_length: int  # tokens per row of sources, end tokens included
    target_length: int  # tokens per row of targets, end tokens included
    packing: Literal["bins", "none"] = "bins"  # none: one pair per row
    too_long: Literal["cut", "leave_out"] = "cut"  # what to do with a pair that has a longer side

    has_text_pairs: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "source_length", "target_length")

    @property
    def lengths(self) -> Lengths:
        source, target = self._limits
        return Lengths(source, target, source + target)

    def row(self, number: int) -> Row:
        documents = [piece.document for piece in self.pieces(number)]
        return Row(list(map(self._pair, documents)), sum(map(self._target_bytes, documents)))

    def num_items(self) -> int:
        return len(self._kept_pairs)

    def text_pairs(self, limit: int | None) -> list[TextPair]:
        kept = self._kept_pairs
        order = permutation(len(kept), seed=0, epoch=0, name="text_pairs")  # a sample of all files
        return [self._text_pair(document) for document in kept[order[:limit]].tolist()]

    def remarks(self) -> list[str]:
        long = int((self._sizes > self._limits).any(axis=1).sum())
        if not long:
            return super().remarks()
        action = "cut" if self.p.too_long == "cut" else "left out"
        return [
            *super().remarks(),
            f"{action} {long:,} of {len(self._sizes):,} pairs, with more than"
            f" source_length={self.p.source_length} or target_length={self.p.target_length} tokens",
        ]

    @property
    def _limits(self) -> tuple[int, int]:
        return self.p.source_length, self.p.target_length

    def _open(self, progress: Progress | None) -> Index:
        tokenizer = PairTokenizer.params(tokenizer=self.p.tokenizer).build()
        return open_index(self.source, tokenizer, progress=progress)

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        """Number of tokens of every source and target, end tokens included, int64 [P, 2]."""
        index = self.index
        source = index.cuts[index.first_cut, 1]
        return np.stack([source, index.units - source + 1], axis=1)

    @functools.cached_property
    def _kept_pairs(self) -> np.ndarray:
        """The indices of the pairs that are not left out, int64 [number of these pairs]."""
        fits = (self._sizes <= self._limits).all(axis=1)
        kept = np.flatnonzero(fits | (self.p.too_long == "cut"))
        if not len(kept):
            raise DataError(f"{self.source.describe()}: {self.remarks()[-1]}: none is left.")
        return kept

    def _make_plan(self) -> Packing:
        kept, lengths = self._kept_pairs, np.minimum(self._sizes[self._kept_pairs], self._limits)
        sizes = lengths.sum(axis=1)
        if self.p.packing == "none":
            rows = np.arange(len(kept))
        elif self.p.form == "decoder":
            rows = best_fit(sizes, self.lengths.decoder)
        else:
            rows = best_fit_pairs(lengths, self._limits)
        return FixedRows(np.stack([kept, np.zeros_like(kept), sizes], axis=1), rows)

    def _pair(self, document: int) -> Pair:
        ids = self.index.encode(document, 0, int(self.index.units[document]))
        source_size, end = int(self._sizes[document, 0]), [self.tokenizer.end_id]
        room = min(source_size, self.lengths.source) - 1
        source = np.concatenate([ids[:room], end])
        target = np.concatenate([ids[source_size:], end])[: self.lengths.target]
        return Pair(source.astype(np.int32), target.astype(np.int32))

    def _text_pair(self, document: int) -> TextPair:
        text = self.index.read(document, 0, int(self.index.size[document]))
        source, target = (side.decode(errors="replace") for side in text.split(SEPARATOR))
        return TextPair(self.source_prompt(self._pair(document).source), source, target)

    def _target_bytes(self, document: int) -> int:
        begin = int(self._sizes[document, 0])
        end = min(begin + self.lengths.target, int(self.index.units[document]))
        return self.index.bytes_before(document, end) - self.index.bytes_before(document, begin)


def best_fit_pairs(lengths: np.ndarray, row_lengths: tuple[int, int]) -> np.ndarray:
    """Returns each pair's row, int64 [P]; lengths, int64 [P, 2], are at most S and T.

    Best-fit decreasing as in `Bins`, with two lengths: the longest pair first (by the side that
    takes the larger share of its row), into the row with the least room left that both sides fit
    into. Rooms are compared first by the side that takes the larger share of rows over all pairs.
    This is vector bin packing; Panigrahy et al. 2011 compare such rules.
    """
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

    Bit r of `_first` is set if a row has room r for the first side. Bit r of `_second[f]` is set if
    a row has room f for the first side and room r for the second. The lowest bit from a length up
    is the fullest row that fits.
    """

    def __init__(self) -> None:
        self._first = 0
        self._second: dict[int, int] = {}
        self._numbers: dict[tuple[int, int], list[int]] = {}

    def put(self, number: int, first: int, second: int) -> None:
        """Adds a row, unless a side has no room: then no pair would fit into the row."""
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
