"""Text for a language model: documents, packed into rows of tokens.

B examples (rows), T tokens a row.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from lingo.config import ranges
from lingo.data.document_input import DocumentInput
from lingo.data.packing import Bins, Packing, Piece, Stream, permutation


class TextInput(DocumentInput):
    """Rows of packed documents.

    An epoch has every token as a target exactly once. Rows of an epoch are shuffled too: those of a
    batch would otherwise often come from one document.
    """

    length: int  # tokens a row
    packing: Literal["stream", "bins"] = "stream"  # bins: cut no document that fits into a row

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length")

    def setup(self) -> None:
        super().setup()
        self._row_order = functools.lru_cache(maxsize=2)(self._draw_row_order)

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns rows, as `filled` describes them.

        Args:
            numbers: int64 [B], of the rows in the run.

        Raises:
            DataError: if a document cannot be read.
        """
        rows = [self._pieces(int(number)) for number in numbers]
        return self.filled(rows, length=self.p.length)

    def specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return super().specs() | self.filled_specs(length=self.p.length)

    def num_examples(self) -> int:
        return self._packing.num_rows

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
