"""Text for a language model: documents, packed into rows of tokens.

Axes: B examples (rows), T tokens per row.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lingo.config import ranges
from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import PlannedInput
from lingo.data.packing import Packing, Stream, pack_bins


class TextInput(PlannedInput):
    """Rows of packed documents. An epoch has every token as a target exactly once."""

    length: int  # tokens a row
    packing: Literal["stream", "bins"] = "stream"  # bins: cut no document that fits into a row

    def check(self) -> None:
        super().check()
        ranges.check_positive(self.p, "length")

    def examples(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `fill_rows`, [B, T] and [B], by `example_id`, int64 [B]."""
        return self.fill_rows(list(map(self.pieces, numbers.tolist())), length=self.p.length)

    def specs(self) -> dict[str, ArraySpec]:
        return super().specs() | self.filled_specs(length=self.p.length)

    def _make_plan(self) -> Packing:
        lengths = self.index.units + 1  # the end after each document
        if self.p.packing == "bins":
            return pack_bins(lengths, row_length=self.p.length)
        seed = self.p.seed if self.p.shuffle else None
        return Stream(lengths, row_length=self.p.length, seed=seed)
