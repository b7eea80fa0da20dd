"""Rows of documents for BERT's pre-training: one or two texts, with some tokens masked.

A document is cut into chunks that fill a row. Text A is the beginning of a chunk. Text B is the
rest, or in half of the rows a run from another document (next-sentence prediction, Devlin et al.
2019, sec. 3.1 and app. A.2). The seed and the `example_id` determine a row, so each epoch has new
splits, new random texts and new masks.

In BERT's own code a row has whole sentences, and the next row begins with the unused rest of a
chunk. Here A ends after a `.`, `!` or `?` before the beginning of a word. Pieces do not show
spaces, so this may also be inside of `np.sum` or `3.5`. The unused rest of a chunk may be read in
another epoch. A chunk that begins inside of a word is read from the next word on.

Axes: B examples (rows), T tokens per row, K predictions per row, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import REQUIRED, ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import PlannedInput
from lingo.data.files import DataError
from lingo.data.index import Index, Progress
from lingo.data.packing import FixedRows, Packing, Piece, cut
from lingo.data.tokenizer import Tokenizer
from lingo.ops import random
from tasks.bert.masking import Masking, TokenMasking, Vocabulary, read_vocabulary
from tasks.bert.rows import ROW_ARRAYS, blank_rows, fill_row, row_specs

_SENTENCE_ENDS = (".", "!", "?")
_PREDICTIONS = ("masked_positions", "masked_ids", "masked_weights")


class Texts(NamedTuple):
    """The texts of a row before masking."""

    first: np.ndarray  # int32 [tokens of A]
    second: np.ndarray  # int32 [tokens of B], empty in a row of one text
    is_random: bool  # whether B comes from another document


class BertInput(PlannedInput):
    """Rows for BERT's pre-training; an epoch has every chunk once, in a new order.

    Batches:
    `tokens`: int32 [B, T], [CLS] A [SEP] B [SEP] or [CLS] A [SEP], masked, then padding;
    `types`: int32 [B, T], 1 for B and the [SEP] after it, else 0;
    `segments`: int32 [B, T], 1 for text, 0 for padding;
    `masked_positions`: int32 [B, K], of the tokens to predict, ascending, then 0;
    `masked_ids`: int32 [B, K], the original tokens at these positions, then 0;
    `masked_weights`: float32 [B, K], 1 for tokens to predict, then 0;
    `is_random`: int32 [B], 1 if B comes from another document; only with `pairs`.
    """

    tokenizer: Tokenizer = REQUIRED  # with [MASK] and word pieces, such as LearnedWordPieces
    length: int  # T, tokens per row
    max_predictions: int  # K, the most tokens to predict in a row
    masking: Masking = TokenMasking  # chooses the tokens to predict
    pairs: bool = True  # two texts per row; False: one text, and no `is_random`
    short_fraction: float = 0.1  # share of the rows with a random shorter length

    def check(self) -> None:
        super().check()
        p, least = self.p, 5 if self.p.pairs else 3
        ranges.check_positive(p, "max_predictions")
        ranges.check_fraction(p, "short_fraction")
        if p.length < least:
            raise ParamError(
                f"length={p.length} leaves no room for text: with pairs={p.pairs} it is at least"
                f" {least}"
            )

    def setup(self) -> None:
        super().setup()
        self.masking = self.p.masking.build()

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns arrays of the examples with ids `numbers`, int64 [B]; padding after one pass."""
        size = len(numbers)
        out = blank_rows(size, length=self.p.length, tokenizer=self.tokenizer)
        out |= {
            name: np.zeros((size, *shape[1:]), dtype)
            for name, (shape, dtype) in self._prediction_specs().items()
        }
        for i, number in enumerate(numbers.tolist()):
            for piece in self.pieces(number):
                self._fill_row(out, i, piece, number)
        return out

    def specs(self) -> dict[str, ArraySpec]:
        rows = row_specs(self.p.batch_size, length=self.p.length)
        return super().specs() | rows | self._prediction_specs()

    def texts(self, number: int) -> Texts:
        """Returns the texts of the row with an `example_id`, before masking.

        Raises IndexError beyond a single pass.
        """
        return self._texts(self.pieces(number)[0], number)

    def _prediction_specs(self) -> dict[str, ArraySpec]:
        size, p = self.p.batch_size, self.p
        specs: dict[str, ArraySpec] = {}
        for name in _PREDICTIONS:
            dtype = "float32" if name == "masked_weights" else "int32"
            specs[name] = ((size, p.max_predictions), dtype)
        return specs | ({"is_random": ((size,), "int32")} if p.pairs else {})

    def _open(self, progress: Progress | None) -> Index:
        _ = self._vocabulary  # raises its errors before an index is made, which may take minutes
        index = super()._open(progress)
        if self.p.pairs and len(index.units) == 1:
            raise DataError(
                f"{self.source.describe()}: there is one document, but in half of the rows the"
                " second text comes from another one: give several, or set pairs=False."
            )
        return index

    def _make_plan(self) -> Packing:
        chunks = cut(self.index.units, self._room)
        return FixedRows(chunks, np.arange(len(chunks)))

    @property
    def _room(self) -> int:
        """The number of tokens of text in a full row."""
        return self.p.length - (3 if self.p.pairs else 2)

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.tokenizer)

    @functools.cached_property
    def _sentence_ends(self) -> np.ndarray:
        """The ids of the marks that end a sentence, int32 [number of them]."""
        ids = [self.tokenizer.encode(mark) for mark in _SENTENCE_ENDS]
        single = np.concatenate([i for i in ids if len(i) == 1] or [np.zeros(0, np.int32)])
        return np.setdiff1d(single, self.tokenizer.special_ids())

    def _fill_row(self, out: dict[str, np.ndarray], i: int, piece: Piece, number: int) -> None:
        """Writes the row of a chunk into row `i` of a batch's arrays."""
        texts = self._texts(piece, number)
        both = [texts.first, texts.second] if self.p.pairs else [texts.first]
        row = {name: out[name][i] for name in ROW_ARRAYS}
        size = fill_row(row, both, tokenizer=self.tokenizer)
        masked = self.masking.mask(
            row["tokens"][:size].copy(),
            random.fold(self._key(number), 1),
            vocabulary=self._vocabulary,
            max_predictions=self.p.max_predictions,
        )
        row["tokens"][:size] = masked.tokens
        out["masked_positions"][i] = masked.positions
        out["masked_ids"][i] = masked.ids
        out["masked_weights"][i] = masked.weights
        if self.p.pairs:
            out["is_random"][i] = texts.is_random

    def _texts(self, piece: Piece, number: int) -> Texts:
        bits = random.host_bits(random.fold(self._key(number), 0), 0, 6).tolist()
        short_bits, size_bits, end_bits, random_bits, document_bits, begin_bits = bits
        room, least = self._room, min(2, self._room)
        if short_bits < self.p.short_fraction * 2**32:
            room = least + _below(size_bits, room - least + 1)
        chunk = self._read(piece.document, piece.begin, piece.end)[:room]
        if not self.p.pairs:
            return Texts(chunk, chunk[:0], is_random=False)
        ends = self._split_points(chunk)
        if not len(ends):  # a single word: no text follows it, so B is random
            ends, random_bits = np.array([min(len(chunk), room - 1)]), 0
        end = int(ends[_below(end_bits, len(ends))])
        if random_bits >= 2**31:
            return Texts(chunk[:end], chunk[end:], is_random=False)
        second = self._other_text(piece.document, room - end, document_bits, begin_bits)
        return Texts(chunk[:end], second, is_random=True)

    def _split_points(self, chunk: np.ndarray) -> np.ndarray:
        """Returns the positions at which A may end and B may begin, int64 [number of them].

        They follow a mark such as "." and precede a word. Without such marks they precede any word.
        """
        begins_word = ~self._vocabulary.continues_word[chunk[1:]]
        after_sentence = begins_word & np.isin(chunk[:-1], self._sentence_ends)
        return 1 + np.flatnonzero(after_sentence if after_sentence.any() else begins_word)

    def _other_text(
        self, document: int, room: int, document_bits: int, begin_bits: int
    ) -> np.ndarray:
        """Returns tokens from another document, int32 [at most `room`], chosen by random bits."""
        other = _below(document_bits, len(self.index.units) - 1)
        other += other >= document
        size = int(self.index.units[other])
        begin = _below(begin_bits, max(size - room, 0) + 1)
        return self._read(other, begin, min(begin + room, size))

    def _read(self, document: int, begin: int, end: int) -> np.ndarray:
        """Returns tokens of a document, int32 [at most end - begin], from the first whole word."""
        ids = self.index.encode(document, begin, end)
        begins_word = ~self._vocabulary.continues_word[ids]
        # argmax is 0, and all tokens stay, if no word begins
        return ids[int(begins_word.argmax()) :] if begin else ids

    def _key(self, number: int) -> random.Key:
        root = random.fold(random.root_key(self.p.seed), random.text_hash("bert"))
        return random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)


def _below(bits: int, size: int) -> int:
    """Maps 32 random bits to a number in 0..size - 1."""
    return bits * size >> 32
