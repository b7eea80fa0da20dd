"""Embeddings: one table with a vector per token, or several tables of different sizes.

With several tables, an example reads one row of each table. A mesh splits the tables along the
logical axis `vocab`, in one of two ways:

    num_groups=None    each table is a weight, and every device has some rows of each table
    num_groups=2       one weight has the tables in 2 equal groups; a device has whole tables

           table_0 [4, D]   table_1 [2, D]       tables [2 x 4, D]
    device 0   0 1             0                 table 0: 0 1 2 3
    device 1   2 3             1                 table 1: 0 1, and table 2: 0

Axes: B batch, T positions or tables, D model width, V vocabulary or rows of one table, R rows of a
group, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import path
from lingo.layers.context import annotate
from lingo.layers.initial import FanIn, Initializer
from lingo.layers.layer import Layer
from lingo.layers.residual import SEQUENCE_AXES, Residual, ResidualCall
from lingo.ops import random
from lingo.ops.lookup import lookup


class Embedding(Layer):
    """Looks up a vector for each token id.

    Its weight `table`, [V, D], has initial variance 1/D, so that a tied head maps normalized
    activations to logits of variance 1.
    """

    vocab_size: int  # number of token ids
    dim: int  # width of the vectors
    init: Initializer = FanIn  # of the table

    positionwise = True

    def setup(self) -> None:
        p = self.p
        shape, axes = [p.vocab_size, p.dim], ("vocab", "embed")
        self.table = self.weight("table", shape, axes=axes, init=p.init.build(), fan_in=p.dim)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of tokens, [B, T, D] in the layer's dtype.

        ids: int32 [B, T], at least 0 and below V.
        """
        return lookup(self.table, ids)

    def vectors(self) -> tf.Tensor:
        """Returns the vectors of all tokens, [V, D], in the layer's dtype."""
        return self.table

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        if len(call.shape) not in (2, 3):
            return super().residuals(call)
        return [Residual(2, (*call.shape[:2], self.p.dim), (*SEQUENCE_AXES, "embed"))]


# ---- several tables ------------------------------------------------------------------------------


class EmbeddingTables(Layer):
    """Looks up a vector in each of T tables (Naumov et al. 2019, sec. 2.1.1).

    The values of a table with V rows have the initial variance 1 / (3 V), as in the authors'
    program. Initial values do not depend on how tables are packed. On a mesh that splits `vocab`
    over N devices, each device has whole tables if the number of groups G is a multiple of N.

    Weights:
        table_0, ...: [V, D] each, if `num_groups` is None.
        tables: [G R, D], otherwise; the rows after the last table of a group are unused zeros.
    """

    vocab_sizes: tuple[int, ...]  # V of each table
    dim: int  # D
    num_groups: int | None = None  # number of groups of whole tables; None: tables are not packed
    # tables with fewer rows than this are copied to every device; only if num_groups is None
    whole_below: int = 0
    # in tables with at least this many rows, a step updates only the rows that it looked up; None:
    # it updates all rows of all tables
    sparse_from: int | None = None
    init: Initializer = FanIn.params(scale=1 / 3)  # of the tables; the fan-in is V

    def check(self) -> None:
        p = self.p
        ranges.check_positive(p, "vocab_sizes", "dim", "num_groups")
        ranges.check_not_negative(p, "whole_below", "sparse_from")
        if not p.vocab_sizes:
            raise ParamError("vocab_sizes=() has no table: give the number of rows of each table")
        if p.num_groups is not None and p.whole_below:
            raise ParamError(
                f"whole_below={p.whole_below} is for tables that are not packed, but"
                f" num_groups={p.num_groups} packs them: set one of the two"
            )

    def setup(self) -> None:
        p, init = self.p, self.p.init.build()
        if p.num_groups is not None:
            self._packing = packing = pack_tables(p.vocab_sizes, num_groups=p.num_groups)
            values = _PackedValues(init, p.vocab_sizes, packing.first_rows)
            shape = [packing.num_rows, p.dim]
            self.tables = self.weight(
                "tables",
                shape,
                axes=("vocab", "embed"),
                init=values,
                sparse=self._is_sparse(packing.num_rows),
            )
            return
        for i, size in enumerate(p.vocab_sizes):
            rows, sparse = "vocab" if size >= p.whole_below else None, self._is_sparse(size)
            axes = (rows, "embed")
            self.weight(_table_name(i), [size, p.dim], axes=axes, init=init, sparse=sparse)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns one vector per table, [B, T, D], in the layer's dtype.

        ids: int32 [B, T], an index of a row in each table, at least 0 and below the table's V.
        """
        if self.p.num_groups is not None:
            rows = ids + tf.constant(self._packing.first_rows, ids.dtype)
            vectors = self.look_up("tables", rows)
        else:
            names = [_table_name(i) for i in range(len(self.p.vocab_sizes))]
            vectors = tf.stack([self.look_up(name, ids[:, i]) for i, name in enumerate(names)], 1)
        return annotate(vectors, "batch", None, "embed")

    def residuals(self, call: ResidualCall) -> list[Residual] | None:
        size = call.shape[0], len(self.p.vocab_sizes), self.p.dim
        return [Residual(1, size, ("batch", None, "embed"))]

    def _is_sparse(self, num_rows: int) -> bool:
        return self.p.sparse_from is not None and num_rows >= self.p.sparse_from


class Packing(NamedTuple):
    """The rows of each of T tables in one tensor, which has G groups of R rows."""

    first_rows: tuple[int, ...]  # [T], the tensor's row where each table begins
    num_rows: int  # G R, the rows of the tensor


def pack_tables(sizes: Sequence[int], *, num_groups: int) -> Packing:
    """Packs tables with `sizes` rows into groups with nearly equal numbers of rows.

    The tables are taken from the largest to the smallest, and each one goes to the group with the
    fewest rows. So the largest group has at most 4/3 of the rows that the largest group of the best
    packing has (Graham 1969, theorem 2).

    >>> pack_tables([4, 1, 2], num_groups=2)
    Packing(first_rows=(0, 6, 4), num_rows=8)
    """
    groups, places, num_used = [0] * len(sizes), [0] * len(sizes), [0] * num_groups
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        groups[i] = min(range(num_groups), key=num_used.__getitem__)
        places[i] = num_used[groups[i]]
        num_used[groups[i]] += sizes[i]
    rows = max(num_used)
    first_rows = (group * rows + place for group, place in zip(groups, places, strict=True))
    return Packing(tuple(first_rows), num_groups * rows)


def _table_name(i: int) -> str:
    return f"table_{i}"


class _PackedValues:
    """Initial values of packed tables; each table has the same values as without packing."""

    def __init__(self, init: Initializer, sizes: Sequence[int], first_rows: Sequence[int]) -> None:
        self._init, self._sizes, self._first_rows = init, sizes, first_rows

    def key(self, root: random.Key, name: str) -> random.Key:
        """Returns the random key of the layer; `draw` derives each table's key from it."""
        layer, _, _ = name.rpartition("/")
        return path.key(root, layer) if layer else root

    def draw(
        self, key: random.Key, shape: Sequence[int], *, fan_in: int, index: Sequence[slice] = ()
    ) -> np.ndarray:
        rows, columns = (*index, slice(None), slice(None))[:2]
        start, stop, _ = rows.indices(shape[0])
        values = np.zeros([stop - start, len(range(*columns.indices(shape[1])))], np.float32)
        for i, (size, first) in enumerate(zip(self._sizes, self._first_rows, strict=True)):
            low, high = max(start, first), min(stop, first + size)
            if low < high:
                values[low - start : high - start] = self._init.draw(
                    path.key(key, _table_name(i)),
                    [size, shape[1]],
                    fan_in=size,
                    index=[slice(low - first, high - first), columns],
                )
        return values
