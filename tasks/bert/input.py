"""BERT's pre-training rows of documents: one or two texts, some of whose tokens are masked.

A document is cut into chunks, as long as a row allows; an epoch has each chunk once. Its first part
is text A. Text B is the rest of the chunk, or, in half of the rows, a run from a random other
document (next-sentence prediction, Devlin et al. 2019, sec. 3.1 and app. A.2). What a row holds is
a function of the seed and its `example_id`, so each epoch has other splits, other second texts and
other masks.

In BERT's own code a row has whole sentences, and what is left of a chunk is read again; here only A
ends where a sentence does, and what is left is read in another epoch.

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
from tasks.bert.rows import ARRAYS, blank_rows, fill_row, row_specs

_SENTENCE_ENDS = (".", "!", "?")
_PREDICTIONS = ("masked_positions", "masked_ids", "masked_weights")


class Texts(NamedTuple):
    """The texts of a row."""

    first: np.ndarray  # int32 [number of tokens], A
    second: np.ndarray  # int32 [number of tokens], B; empty in a row of one text
    is_random: bool  # whether B is not what follows A


class BertInput(PlannedInput):
    """Rows for BERT's pre-training; the chunks of an epoch come in a new order each time.

    Batches:
    `tokens`: int32 [B, T], [CLS] A [SEP] B [SEP] and padding, or [CLS] A [SEP], as it is read;
    `types`: int32 [B, T], 1 for B and the [SEP] after it, else 0;
    `segments`: int32 [B, T], 1 for text, 0 for padding;
    `masked_positions`: int32 [B, K], of the tokens to predict, ascending, then 0;
    `masked_ids`: int32 [B, K], the tokens that were there, then 0;
    `masked_weights`: float32 [B, K], 1 for tokens to predict, then 0;
    `is_random`: int32 [B], 1 if B is not what follows A; only with `pairs`.
    """

    tokenizer: Tokenizer = REQUIRED  # has [MASK] and tells words, such as LearnedWordPieces
    length: int  # T, tokens a row
    max_predictions: int  # K, tokens to predict in a row, at most
    masking: Masking = TokenMasking  # which tokens these are
    pairs: bool = True  # two texts a row; False: one, and no `is_random`
    short_fraction: float = 0.1  # share of the rows that are shorter, by a random length

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
        """Returns the arrays of a batch by `example_id`, int64 [B]; beyond one pass, padding."""
        size = len(numbers)
        out = blank_rows(size, length=self.p.length, tokenizer=self.tokenizer)
        out |= {
            name: np.zeros((size, *shape[1:]), dtype)
            for name, (shape, dtype) in self._prediction_specs().items()
        }
        for i, number in enumerate(numbers.tolist()):
            for piece in self.pieces(number):
                row = {name: array[i : i + 1] for name, array in out.items()}
                self._fill_row(row, piece, number)
        return out

    def specs(self) -> dict[str, ArraySpec]:
        rows = row_specs(self.p.batch_size, length=self.p.length)
        return super().specs() | rows | self._prediction_specs()

    def texts(self, number: int) -> Texts:
        """Returns the texts of a row, by its `example_id`, before any token is masked.

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
        _ = self._vocabulary  # first: indexing may take minutes
        index = super()._open(progress)
        if self.p.pairs and len(index.units) == 1:
            raise DataError(
                f"{self.source.describe()}: there is one document, but in half of the rows the"
                " second text is of another one: give several, or set pairs=False."
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
        """The ids that end a sentence, int32 [number of them]."""
        ids = [self.tokenizer.encode(mark) for mark in _SENTENCE_ENDS]
        single = np.concatenate([i for i in ids if len(i) == 1] or [np.zeros(0, np.int32)])
        return np.setdiff1d(single, self.tokenizer.special_ids())

    def _fill_row(self, row: dict[str, np.ndarray], piece: Piece, number: int) -> None:
        """Writes the row of a chunk into arrays [1, ...]."""
        texts = self._texts(piece, number)
        both = [texts.first, texts.second] if self.p.pairs else [texts.first]
        size = fill_row({name: row[name][0] for name in ARRAYS}, both, tokenizer=self.tokenizer)
        masked = self.masking.mask(
            row["tokens"][0, :size].copy(),
            random.fold(self._key(number), 1),
            vocabulary=self._vocabulary,
            max_predictions=self.p.max_predictions,
        )
        row["tokens"][0, :size] = masked.tokens
        row["masked_positions"][0] = masked.positions
        row["masked_ids"][0] = masked.ids
        row["masked_weights"][0] = masked.weights
        if self.p.pairs:
            row["is_random"][0] = texts.is_random

    def _texts(self, piece: Piece, number: int) -> Texts:
        words = random.host_bits(random.fold(self._key(number), 0), 0, 6).tolist()
        short_word, size_word, end_word, random_word, which_word, where_word = words
        room, least = self._room, min(2, self._room)
        if short_word < self.p.short_fraction * 2**32:
            room = least + _below(size_word, room - least + 1)
        chunk = self._read(piece.document, piece.begin, piece.end)[:room]
        if not self.p.pairs:
            return Texts(chunk, chunk[:0], is_random=False)
        ends = self._possible_ends(chunk)
        if not len(ends):  # one word: nothing follows it
            ends, random_word = np.array([min(len(chunk), room - 1)]), 0
        end = int(ends[_below(end_word, len(ends))])
        if random_word >= 2**31:
            return Texts(chunk[:end], chunk[end:], is_random=False)
        second = self._other_text(piece.document, room - end, which_word, where_word)
        return Texts(chunk[:end], second, is_random=True)

    def _possible_ends(self, chunk: np.ndarray) -> np.ndarray:
        """Returns where A may end in a chunk, int64 [number of places], each with text after it.

        A ends with a sentence. In a chunk without the end of a sentence, it ends with a word.
        """
        begins_word = ~self._vocabulary.continues[chunk[1:]]
        after_sentence = begins_word & np.isin(chunk[:-1], self._sentence_ends)
        return 1 + np.flatnonzero(after_sentence if after_sentence.any() else begins_word)

    def _other_text(self, document: int, room: int, which: int, where: int) -> np.ndarray:
        """Returns a run of another document, at most `room` tokens, by two random words."""
        other = _below(which, len(self.index.units) - 1)
        other += other >= document
        size = int(self.index.units[other])
        begin = _below(where, max(size - room, 0) + 1)
        return self._read(other, begin, min(begin + room, size))

    def _read(self, document: int, begin: int, end: int) -> np.ndarray:
        """Returns tokens of a document, int32 [at most end - begin], from the first whole word."""
        ids = self.index.encode(document, begin, end)
        begins_word = ~self._vocabulary.continues[ids]
        return ids[int(begins_word.argmax()) :] if begin else ids  # no word begins: all of them

    def _key(self, number: int) -> random.Key:
        root = random.fold(random.root_key(self.p.seed), random.text_hash("bert"))
        return random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)


def _below(word: int, size: int) -> int:
    """Returns a number in 0..size - 1, by a random word of 32 bits."""
    return word * size >> 32
