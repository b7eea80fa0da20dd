"""Rings of two rows, then rings along columns; chips that are in no whole pair of rows forward.

Kumar and Jouppi 2020 (highly available pods), the two-dimensional scheme. A pair of rows without a
hole is a ring of single hops: out by one row, back by the other. So pairs need no links that close
a row, and a hole costs its pair alone. The healthy chips of other rows send their payload, chunk by
chunk, along shortest ways to a chip of a pair, each chunk one step before the ring needs it: d hops
cost d steps and no more. Then chips at the same place of all pairs are a ring, whose messages
go around holes where they must.

C columns, k pairs, p = 2 C chips of a pair, D hops of the farthest chip that forwards:
2 (D + p - 1 + k - 1) steps. Of pairs of rows and pairs of columns those with more chips are taken,
or else those with fewer steps. On a torus the last row and the first may be a pair.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.plan import Plan, Step, Transfers, merge_steps, ring_order, ring_steps


def row_pairs(grid: Grid) -> Plan:
    """Returns the plan; raises ParamError without two adjacent whole rows or columns."""
    if len(grid.axes) != 2 or any(axis.kind == "switch" for axis in grid.axes):
        raise ParamError(f"row_pairs needs rows and columns of linked chips, and {grid} is given")
    ids = grid.ids()
    found = [(axis, _whole_pairs(grid, axis, lines)) for axis, lines in enumerate((ids, ids.T))]
    most = max(pairs.size for _, pairs in found)
    if not most:
        raise ParamError(
            f"row_pairs needs two adjacent rows or columns without a hole, of 2 chips or more, and"
            f" {grid} has none"
        )
    plans = [_plan(grid, axis, pairs) for axis, pairs in found if pairs.size == most]
    return min(plans, key=lambda plan: plan.num_steps)


def _plan(grid: Grid, axis: int, pairs: NDArray[np.int64]) -> Plan:
    """Returns the plan with rings of some pairs [k, p] of lines, which follow along an axis."""
    num_pairs, p = pairs.shape
    forwarders = _Forwarders(grid, pairs)
    firsts = np.arange(p, dtype=np.int64) * num_pairs
    pieces = np.tile(firsts, (num_pairs, 1))
    waits: list[Step] = [() for _ in range(forwarders.depth)]
    along_pairs = merge_steps(
        [*waits, *ring_steps(pairs, pieces, num_pairs)], forwarders.steps(num_pairs)
    )
    order = ring_order(num_pairs, is_closed=grid.axes[axis].is_closed)
    across = ring_steps(
        pairs.T[:, order], firsts[:, None] + np.arange(num_pairs, dtype=np.int64), 1
    )
    return Plan("row_pairs", grid, p * num_pairs, (*along_pairs, *across))


def _whole_pairs(grid: Grid, axis: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rings of pairs of adjacent whole rows of ids [R, C], as many as can be: [k, 2 C].

    Rows follow along `axis` of the grid. Pairs begin at the top or, if that gives more on a torus,
    behind the first hole.
    """
    is_whole = [grid.holes.isdisjoint(one) for one in ids.tolist()]
    starts = [0]
    if grid.axes[axis].is_closed and not all(is_whole):
        starts.append(is_whole.index(False) + 1)
    firsts: list[NDArray[np.int64]] = []
    for start in starts if ids.shape[1] > 1 else ():  # a pair of rows of one chip is a line
        firsts.append(_first_rows(np.roll(is_whole, -start)) + start)
    first = max(firsts, key=len, default=np.array([], np.int64))
    size = len(ids)
    return np.concatenate([ids[first % size], ids[(first + 1) % size, ::-1]], axis=1)


def _first_rows(is_whole: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the first row of each pair of adjacent whole rows, from the top: int64 [k]."""
    found: list[int] = []
    row = 0
    while row + 1 < len(is_whole):
        if is_whole[row] and is_whole[row + 1]:
            found.append(row)
            row += 1
        row += 1
    return np.array(found, np.int64)


class _Forwarders:
    """The healthy chips outside the pairs: a forest whose roots are chips of pairs."""

    def __init__(self, grid: Grid, pairs: NDArray[np.int64]) -> None:
        self._p = pairs.shape[1]
        hops = grid.distances(pairs.ravel().tolist())
        self._root = {chip: i for ring in pairs.tolist() for i, chip in enumerate(ring)}
        self._layers: list[list[tuple[int, int]]] = []  # of one hop, two, ...: chip, next chip
        for chip, distance in hops.items():
            if distance == 0:
                continue
            following = min(o for o, _ in grid.neighbors(chip) if hops[o] == distance - 1)
            self._root[chip] = self._root[following]
            self._layers += [[]] * (distance > len(self._layers))
            self._layers[distance - 1] = [*self._layers[distance - 1], (chip, following)]

    @property
    def depth(self) -> int:
        """Hops of the farthest chip."""
        return len(self._layers)

    def steps(self, count: int) -> Iterator[Step]:
        """Yields the steps: each piece, of `count` chunks, goes as the ring will send it.

        The ring begins at the step `depth`, and sends at step t of it the piece i - 1 - t of its
        chip i (`plan.ring_steps`); a chip that is d hops away sends it d steps before.
        """
        arrays: list[tuple[NDArray[np.int64], ...]] = []
        for layer in self._layers:
            source, target = np.array(layer).T
            arrays.append((source, target, np.array([self._root[chip] for chip, _ in layer])))
        for step in range(self.depth + self._p - 1 if arrays else 0):
            sent: list[Transfers] = []
            for distance, (source, target, root) in enumerate(arrays, start=1):
                t = step - self.depth + distance
                if 0 <= t < self._p:
                    sent.append(Transfers(source, target, (root - 1 - t) % self._p * count, count))
            yield tuple(sent)
