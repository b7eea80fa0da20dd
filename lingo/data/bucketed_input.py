"""Text in buckets: a row holds one document, and a batch holds documents of similar length.

Nothing is packed, so no attention mask has to separate neighbours, and there is little padding. In
return, the shape of a batch changes from step to step: a program is traced once per shape, and
steps of different shapes cannot share one loop.

Axes: B examples (rows), T tokens per row, N documents.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.data.array_spec import ArraySpec
from lingo.data.document_input import DocumentInput
from lingo.data.epoch_order import permutation
from lingo.data.input import Input
from lingo.data.packing import Piece, cut


class PlannedBatch(NamedTuple):
    """A planned batch; the last batch of a bucket may have fewer pieces than rows."""

    bucket: int  # index of the batch's bucket
    rows_before: int  # number of the epoch's rows before this batch
    pieces: list[Piece]  # the piece of a document in each row


class _Orders(NamedTuple):
    """The random orders of an epoch's batches and pieces."""

    batches: np.ndarray  # int64 [number of batches], batch indices in the epoch's order
    rows_before: np.ndarray  # int64 [number of batches], rows of the epoch before each batch
    members: list[np.ndarray]  # per bucket: int64 indices of its pieces, in the epoch's order


class Buckets:
    """A plan of batches, one bucket per batch; an epoch has every piece once.

    A piece is a document with its end token; a document longer than the last boundary is cut into
    several pieces. A piece goes to the first bucket that it fits into. Each epoch shuffles the
    batches, and the pieces within each bucket. With `seed=None` nothing is shuffled: pieces keep
    the order of the documents.

    Args:
        lengths: int64 [N], tokens per document, end token included.
        boundaries: the row length T of each bucket, in tokens, ascending.
        rows: the number of rows B in a batch of each bucket.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        boundaries: Sequence[int],
        rows: Sequence[int],
        seed: int | None,
    ) -> None:
        self._pieces, self._rows, self._seed = cut(lengths, boundaries[-1]), rows, seed
        bucket = np.searchsorted(boundaries, self._pieces[:, 2] - self._pieces[:, 1])
        self._members = [np.flatnonzero(bucket == b) for b in range(len(boundaries))]
        counts = [-(-len(m) // size) for m, size in zip(self._members, rows, strict=True)]
        self._batches = [(b, i) for b, count in enumerate(counts) for i in range(count)]
        self.num_pieces, self.num_batches = len(self._pieces), len(self._batches)
        self.num_rows = sum(rows[b] for b, _ in self._batches)
        self._orders = functools.lru_cache(maxsize=2)(self._draw_orders)

    def batch(self, epoch: int, index: int) -> PlannedBatch:
        """Returns batch `index` of an epoch."""
        orders = self._orders(epoch)
        bucket, i = self._batches[orders.batches[index]]
        size = self._rows[bucket]
        members = orders.members[bucket][i * size : (i + 1) * size]
        pieces = [Piece(*map(int, piece)) for piece in self._pieces[members]]
        return PlannedBatch(bucket, int(orders.rows_before[index]), pieces)

    def _draw_orders(self, epoch: int) -> _Orders:
        def order(size: int, name: str) -> np.ndarray:
            if self._seed is None:
                return np.arange(size)
            return permutation(size, seed=self._seed, epoch=epoch, name=name)

        batches = order(self.num_batches, "batches")
        rows = [self._rows[self._batches[number][0]] for number in batches]
        members = [m[order(len(m), f"bucket {b}")] for b, m in enumerate(self._members)]
        return _Orders(batches, np.cumsum([0, *rows[:-1]]), members)


class Bucketed(Input, interface=True):
    """Batches that `Buckets` plans; subclasses define `_plan` and `fill`.

    A subclass has a field `boundaries`: the length of each bucket's rows.
    """

    def check(self) -> None:
        super().check()
        bounds = self.p.boundaries
        if not bounds or bounds[0] < 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ParamError(f"boundaries={list(bounds)} must be positive and ascending")

    def fill(
        self, pieces: Sequence[Piece | None], numbers: np.ndarray, *, length: int
    ) -> dict[str, np.ndarray]:
        """Returns the arrays of rows with one piece each, {name: [B, ...]}; None: padding.

        `numbers`, int64 [B], are the rows' `example_id`.
        """
        raise self._missing_method("fill", "it returns {name: [B, ...]} for pieces")

    def batch(self, step: int, *, rows: slice = slice(None)) -> dict[str, np.ndarray]:
        """Returns the arrays of `Input.batch`, [B], and of `fill`.

        The length of rows is the boundary of the step's bucket; B is its number of rows, unless
        `rows` selects fewer.
        """
        self.check_step(step)
        plan = self._planned_batch(step)
        indices = np.arange(self._rows()[plan.bucket], dtype=np.int32)[rows]
        pieces = [plan.pieces[i] if i < len(plan.pieces) else None for i in indices]
        numbers = self.examples_before(step) + indices.astype(np.int64)
        return self.fill(pieces, numbers, length=self.p.boundaries[plan.bucket]) | {
            "example_id": numbers,
            "rows": indices,
            "weights": (indices < len(plan.pieces)).astype(np.float32),
        }

    def shape_id(self, step: int) -> int:
        return self._planned_batch(step).bucket

    def num_examples(self) -> int:
        return self._plan.num_pieces

    def pass_batches(self) -> int:
        return self._plan.num_batches

    def examples_before(self, step: int) -> int:
        rows_before = self._planned_batch(step).rows_before
        return step // self._plan.num_batches * self._plan.num_rows + rows_before

    def origins(self, numbers: np.ndarray) -> list[str]:
        """Returns the origin of each `example_id` [B]: "2:17" is row 17 of pass 2, both from 0."""
        passes = (divmod(number, self._plan.num_rows) for number in numbers.tolist())
        return [f"{epoch}:{row}" for epoch, row in passes]

    def epochs(self, step: int) -> float:
        return step / self._plan.num_batches

    @property
    def _plan(self) -> Buckets:
        raise self._missing_method("_plan", "it returns Buckets")

    def _planned_batch(self, step: int) -> PlannedBatch:
        return self._plan.batch(*divmod(step, self._plan.num_batches))

    def _rows(self) -> list[int]:
        """Returns rows per batch of each bucket: multiples of `batch_size`, which split evenly."""
        return [self.p.batch_size] * len(self.p.boundaries)


def rows_of_equal_size(boundaries: Sequence[int], batch_size: int) -> list[int]:
    """Returns the rows per batch of each bucket for about equally long batches.

    They are multiples of `batch_size`, the rows of the last bucket.
    """
    return [batch_size * (boundaries[-1] // boundary) for boundary in boundaries]


class BucketedInput(Bucketed, DocumentInput):
    """Rows of one document each, padded to the length of their bucket; one bucket per batch.

    `batch_size` is the number of rows in a batch of the last bucket. With `constant_tokens`,
    batches of other buckets have more rows. Every row counts as an example of the run, even the
    padding rows (weight 0) in a bucket's last batch of an epoch.
    """

    boundaries: list[int] = [64, 128, 256, 512]  # tokens per row of each bucket; longer text is cut
    constant_tokens: bool = True  # more rows in shorter buckets, for about equal tokens per batch

    def fill(
        self, pieces: Sequence[Piece | None], numbers: np.ndarray, *, length: int
    ) -> dict[str, np.ndarray]:
        """Returns the arrays of `fill_rows`, [B, T] and [B]."""
        del numbers
        return self.fill_rows([[piece] if piece else [] for piece in pieces], length=length)

    def specs(self) -> dict[str, ArraySpec]:
        return super().specs() | self.filled_specs(length=self.p.boundaries[-1])

    @functools.cached_property
    def _plan(self) -> Buckets:
        return Buckets(
            self.index.units + 1,
            boundaries=self.p.boundaries,
            rows=self._rows(),
            seed=self.p.seed if self.p.shuffle else None,
        )

    def _rows(self) -> list[int]:
        if not self.p.constant_tokens:
            return super()._rows()
        return rows_of_equal_size(self.p.boundaries, self.p.batch_size)
