"""Inputs whose rows hold tokens of documents; `TextInput` packs several documents into a row.

Axes: B examples (rows), T tokens per row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from lingo.config import ranges
from lingo.data.array_spec import ArraySpec
from lingo.data.epoch_order import permutation
from lingo.data.gzip_copy import describe_copies
from lingo.data.index import Index, Progress, open_index
from lingo.data.input import Input
from lingo.data.packing import Packing, Piece, Stream, pack_bins
from lingo.data.record_source import DecodedRecords, InstalledSource, RecordSource
from lingo.data.tokenizer import ByteTokenizer, Tokenizer

_ARRAYS = ("tokens", "targets", "segments", "positions")


class DocumentInput(Input):
    """Rows of documents; each token is predicted from the tokens before it in its document.

    The built `tokenizer` encodes prompts and decodes samples, too.
    """

    source: RecordSource = InstalledSource  # where the documents are
    tokenizer: Tokenizer = ByteTokenizer  # turns documents into token ids
    shuffle: bool = True  # a new order each epoch; False: the source's order

    def setup(self) -> None:
        self.source = self.p.source.build()
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size

    def offers(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}

    def prepare(self, *, progress: Progress | None = None) -> None:
        if "index" not in self.__dict__:
            self.index = self._open(progress)

    @functools.cached_property
    def index(self) -> Index:
        """The index of the documents; opened at first use."""
        return self._open(None)

    def _open(self, progress: Progress | None) -> Index:
        return open_index(self.source, self.tokenizer, progress=progress)

    def fingerprint(self) -> dict[str, Any]:
        index = self.index
        return {
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "documents": len(index.units),
            "bytes": int(index.size.sum()),
            "tokens": int(index.units.sum()),
            "digest": index.digest,
            **(
                {"damaged": index.damage.records} if isinstance(self.source, DecodedRecords) else {}
            ),
        }

    def remarks(self) -> list[str]:
        damage = self.index.damage
        left_out = [f"left out {damage}"] if damage.records else []
        return describe_copies(self.index.files) + left_out

    def fill_rows(self, rows: Sequence[Sequence[Piece]], *, length: int) -> dict[str, np.ndarray]:
        """Returns the arrays of rows that hold some pieces; a row without pieces is all padding.

        Returns:
            `targets`: int32 [B, T], tokens to predict;
            `tokens`: int32 [B, T], the token before each target, `start_id` before a document;
            `segments`: int32 [B, T], 1, 2, ... for the pieces of documents in a row, 0 for padding;
            `positions`: int32 [B, T], 0, 1, ... in each piece;
            `bytes`: int32 [B], bytes of the targets' text; end tokens count 0.
        """
        out = {name: np.zeros((len(rows), length), np.int32) for name in _ARRAYS}
        out["tokens"][:] = out["targets"][:] = self.tokenizer.pad_id
        for i, pieces in enumerate(rows):
            self._fill({name: out[name][i] for name in _ARRAYS}, pieces)
        size = [sum(map(self._num_bytes, pieces)) for pieces in rows]
        return out | {"bytes": np.array(size, np.int32)}

    def filled_specs(self, *, length: int) -> dict[str, ArraySpec]:
        """Returns name -> (shape, dtype) of what `fill_rows` returns for a whole batch."""
        shape = (self.p.batch_size, length)
        return {name: (shape, "int32") for name in _ARRAYS} | {"bytes": (shape[:1], "int32")}

    def _num_bytes(self, piece: Piece) -> int:
        begin, end = (self.index.bytes_before(piece.document, at) for at in piece[1:])
        return end - begin

    def _fill(self, row: dict[str, np.ndarray], pieces: Sequence[Piece]) -> None:
        """Writes pieces into the arrays of one row; each array is [T]."""
        at = 0
        for segment, piece in enumerate(pieces, 1):
            sequence = self._sequence(piece)
            here = slice(at, at + len(sequence) - 1)
            row["tokens"][here], row["targets"][here] = sequence[:-1], sequence[1:]
            row["segments"][here] = segment
            row["positions"][here] = np.arange(len(sequence) - 1)
            at = here.stop

    def _sequence(self, piece: Piece) -> np.ndarray:
        """Returns the tokens of a piece and the token before it, int32 [end - begin + 1]."""
        length = int(self.index.units[piece.document])
        begin, end = max(piece.begin - 1, 0), min(piece.end, length)
        ids = self.index.encode(piece.document, begin, end)
        start = [self.tokenizer.start_id] if piece.begin == 0 else []
        stop = [self.tokenizer.end_id] if piece.end > length else []
        return np.concatenate([start, ids, stop]).astype(np.int32)


class PlannedInput(DocumentInput):
    """Rows of documents that follow a plan; each epoch shuffles the rows anew.

    Rows are shuffled in addition to documents, because otherwise the rows of a batch would often
    come from one document.
    """

    def setup(self) -> None:
        super().setup()
        self._row_order = functools.lru_cache(maxsize=2)(self._draw_row_order)

    @functools.cached_property
    def plan(self) -> Packing:
        """The plan of rows; made at first use, from the documents' lengths alone."""
        return self._make_plan()

    def num_examples(self) -> int:
        return self.plan.num_rows

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origin of each `example_id` [B]: "2:17" is row 17 of pass 2, both from 0."""
        passes = [divmod(number, self.num_examples()) for number in numbers.tolist()]
        return [f"{epoch}:{self._row_order(epoch)[row]}" for epoch, row in passes]

    def pieces(self, number: int) -> list[Piece]:
        """Returns the pieces in the row with an `example_id`; [] after the end of a single pass."""
        epoch, row = divmod(number, self.num_examples())
        if epoch and not self.p.repeat:
            return []
        return self.plan.row(epoch, int(self._row_order(epoch)[row]))

    def _make_plan(self) -> Packing:
        raise NotImplementedError(f"{type(self).__name__} has no plan")

    def _draw_row_order(self, epoch: int) -> np.ndarray:
        if not self.p.shuffle:
            return np.arange(self.num_examples())
        return permutation(self.num_examples(), seed=self.p.seed, epoch=epoch, name="rows")


class TextInput(PlannedInput):
    """Rows of packed documents. An epoch has every token as a target exactly once."""

    length: int  # tokens per row
    packing: Literal["stream", "bins"] = "stream"  # bins: never cut a document that fits into a row

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length")

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `fill_rows` for the rows with these `example_id`s, int64 [B]."""
        return self.fill_rows(list(map(self.pieces, numbers.tolist())), length=self.p.length)

    def specs(self) -> dict[str, ArraySpec]:
        return super().specs() | self.filled_specs(length=self.p.length)

    def _make_plan(self) -> Packing:
        lengths = self.index.units + 1  # 1 for the end token of each document
        if self.p.packing == "bins":
            return pack_bins(lengths, row_length=self.p.length)
        seed = self.p.seed if self.p.shuffle else None
        return Stream(lengths, row_length=self.p.length, seed=seed)
