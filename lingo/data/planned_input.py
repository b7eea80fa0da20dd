"""Inputs whose rows are planned from the lengths of documents, and shuffled anew in each epoch.

Axes: B examples (rows).
"""

from __future__ import annotations

import functools

import numpy as np

from lingo.data.document_input import DocumentInput
from lingo.data.packing import Packing, Piece, permutation


class PlannedInput(DocumentInput):
    """Rows of a plan.

    An epoch shuffles its rows, not only its documents: otherwise the rows of a batch would often
    come from one document.
    """

    def setup(self) -> None:
        super().setup()
        self._row_order = functools.lru_cache(maxsize=2)(self._draw_row_order)

    @functools.cached_property
    def plan(self) -> Packing:
        """The plan of rows; made at first use, from the lengths of documents alone."""
        return self._make_plan()

    def num_examples(self) -> int:
        return self.plan.num_rows

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns where rows come from: "2:17" is row 17 of the plan for pass 2, from 0.

        Args:
            numbers: int64 [B], `example_id` of rows.
        """
        size = self.num_examples()
        passes = [divmod(number, size) for number in numbers.tolist()]
        return [f"{epoch}:{self._row_order(epoch)[row]}" for epoch, row in passes]

    def pieces(self, number: int) -> list[Piece]:
        """Returns the pieces in a row, by its `example_id`; [] beyond a single pass."""
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
