"""Text for a language model: documents, packed into rows of tokens.

Axes: B examples (rows), T tokens per row.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lingo.config import ranges
from lingo.data.array_spec import ArraySpec
from lingo.data.packing import Bins, Packing, Stream
from lingo.data.planned_input import PlannedInput


class TextInput(PlannedInput):
    """Rows of packed documents. An epoch has every token as a target exactly once."""

    length: int  # tokens a row
    packing: Literal["stream", "bins"] = "stream"  # bins: cut no document that fits into a row

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length")

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns packed rows.

        Args:
            numbers: int64 [B], `example_id` of the rows.

        Returns:
            The arrays of `fill_rows`, [B, T] and [B].

        Raises:
            DataError: if a document cannot be read.
        """
        rows = [self.pieces(int(number)) for number in numbers]
        return self.fill_rows(rows, length=self.p.length)

    def specs(self) -> dict[str, ArraySpec]:
        return super().specs() | self.filled_specs(length=self.p.length)

    def _make_plan(self) -> Packing:
        lengths = self.index.tokens + 1  # the end after each document
        if self.p.packing == "bins":
            return Bins(lengths, row_length=self.p.length)
        seed = self.p.seed if self.p.shuffle else None
        return Stream(lengths, row_length=self.p.length, seed=seed)
