"""Text for a language model: documents, packed into rows of tokens.

B examples (rows), T tokens a row.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

from lingo.config.params import ParamError
from lingo.data.index import Index, Progress, open_index
from lingo.data.input import Input
from lingo.data.packing import Bins, Packing, Piece, Stream, permutation
from lingo.data.source import InstalledSource, Source
from lingo.data.tokenizer import ByteTokenizer, Tokenizer

_ARRAYS = ("tokens", "targets", "segments", "positions")


class TextInput(Input):
    """Rows of packed documents, each token predicted from those before it in its document.

    An epoch has every token as a target exactly once. Rows of an epoch are shuffled too: those of a
    batch would otherwise often come from one document.

    Attributes:
        tokenizer: built; encodes prompts and decodes samples.
        vocab_size: number of token ids.
    """

    length: int  # tokens a row
    source: Source = InstalledSource  # where the documents are
    tokenizer: Tokenizer = ByteTokenizer  # how they become integers
    packing: Literal["stream", "bins"] = "stream"  # bins: cut no document that fits into a row
    shuffle: bool = True  # a new order each epoch; False: as listed

    def check(self) -> None:
        super().check()
        if self.p.length < 1:
            raise ParamError(f"length={self.p.length} is not positive.")

    def setup(self) -> None:
        self.source = self.p.source.build()
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size
        self._row_order = functools.lru_cache(maxsize=2)(self._draw_row_order)

    def offers(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}

    def prepare(self, *, progress: Progress | None = None) -> None:
        if "index" not in self.__dict__:
            self.index = open_index(self.source, self.tokenizer, progress=progress)

    @functools.cached_property
    def index(self) -> Index:
        """The documents; opened at first use."""
        return open_index(self.source, self.tokenizer)

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        """Returns the examples of a step.

        Args:
            step: 0, 1, ...; of a single pass, less than `num_batches()`.
            rows: which of the step's examples are wanted, out of `batch_size`: B of them.

        Returns:
            `targets`: int32 [B, T], tokens to predict;
            `tokens`: int32 [B, T], the token before each target, the start before a document;
            `segments`: int32 [B, T], 1, 2, ... for the pieces of documents in a row, 0 for padding;
            `positions`: int32 [B, T], 0, 1, ... in each piece;
            `example_id`: int64 [B], the number of the row in the run;
            `rows`: int32 [B], its number in the step's batch;
            `weights`: float32 [B], 0 for a row that only fills the last batch.

        Raises:
            DataError: if a document cannot be read.
        """
        if step < 0 or (not self.p.repeat and step >= self.num_batches()):
            raise IndexError(f"the input has no batch {step}")
        wanted = np.arange(self.p.batch_size, dtype=np.int32)[rows]
        example_id = step * self.p.batch_size + wanted.astype(np.int64)
        out = {name: np.zeros((len(example_id), self.p.length), np.int32) for name in _ARRAYS}
        out["tokens"][:], out["targets"][:] = self.tokenizer.pad_id, self.tokenizer.pad_id
        for i, example in enumerate(example_id):
            self._fill({name: out[name][i] for name in _ARRAYS}, self._pieces(int(example)))
        weights = out["segments"].any(axis=1).astype(np.float32)
        return out | {"example_id": example_id, "rows": wanted, "weights": weights}

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        shape = (self.p.batch_size, self.p.length)
        return super().specs() | {name: (shape, "int32") for name in _ARRAYS}

    def num_examples(self) -> int:
        return self._packing.num_rows

    def fingerprint(self) -> dict[str, Any]:
        index = self.index
        return {
            "source": self.source.describe(),
            "tokenizer": self.tokenizer.describe(),
            "documents": len(index.tokens),
            "bytes": int(index.size.sum()),
            "tokens": int(index.tokens.sum()),
            "digest": index.digest,
        }

    @functools.cached_property
    def _packing(self) -> Packing:
        lengths = self.index.tokens + 1  # the end after each document
        if self.p.packing == "bins":
            return Bins(lengths, row_length=self.p.length)
        seed = self.p.seed if self.p.shuffle else None
        return Stream(lengths, row_length=self.p.length, seed=seed)

    def _pieces(self, example: int) -> list[Piece]:
        """Returns what stands in the row of this number in the run; nothing after a single pass."""
        epoch, row = divmod(example, self.num_examples())
        if epoch and not self.p.repeat:
            return []
        return self._packing.row(epoch, int(self._row_order(epoch)[row]))

    def _draw_row_order(self, epoch: int) -> np.ndarray:
        if not self.p.shuffle:
            return np.arange(self.num_examples())
        return permutation(self.num_examples(), seed=self.p.seed, epoch=epoch, name="rows")

    def _fill(self, row: dict[str, np.ndarray], pieces: list[Piece]) -> None:
        """Writes pieces into the arrays of one row, each [T]."""
        at = 0
        for segment, piece in enumerate(pieces, 1):
            sequence = self._sequence(piece)
            here = slice(at, at + len(sequence) - 1)
            row["tokens"][here], row["targets"][here] = sequence[:-1], sequence[1:]
            row["segments"][here] = segment
            row["positions"][here] = np.arange(len(sequence) - 1)
            at = here.stop

    def _sequence(self, piece: Piece) -> np.ndarray:
        """Returns a piece with the token before it, int32 [end - begin + 1]."""
        index, document = self.index, piece.document
        length, size = int(index.tokens[document]), int(index.size[document])
        begin, end = max(piece.begin - 1, 0), min(piece.end, length)
        read = functools.partial(index.read, document)
        ids = self.tokenizer.part(read, size, begin, end)
        start = [self.tokenizer.start_id] if piece.begin == 0 else []
        stop = [self.tokenizer.end_id] if piece.end > length else []
        return np.concatenate([start, ids, stop]).astype(np.int32)
