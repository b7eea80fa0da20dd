"""The planners of all-reduce by name: `torus2d`, `torus3d`, `multiring`, `row_pairs` and `ring`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError, suggest
from lingo.mesh.allreduce.cost import measure
from lingo.mesh.allreduce.grid import Axis, Grid
from lingo.mesh.allreduce.plan import (
    AllReducePlan,
    Step,
    Transfers,
    merge_steps,
    ring_order,
    ring_steps,
)
from lingo.mesh.allreduce.ring import ring

# ---- whole axes, all at once ---------------------------------------------------------------------


def torus2d(grid: Grid) -> AllReducePlan:
    """Returns the plan that uses both axes at once: parts of the payload differ in axis order.

    Ying et al. 2018 (ResNet-50 at supercomputer scale), sec. 3.3: one half is reduced along Y, then
    X, while the other half is reduced along X, then Y. On rings each half is halved again, to go
    around in both directions. So all links of a torus of equal sides carry the same load all the
    time, and n bytes on N chips with D links each take 2 n (N - 1) / N / D / bandwidth plus
    latencies, as in `Network` of `lingo/inspection/plan/network.py`. If sides differ, parts share
    links in some steps, and take longer. Raises ParamError for holes, or if there are not two axes.
    """
    return _plan_torus("torus2d", grid, 2)


def torus3d(grid: Grid) -> AllReducePlan:
    """Returns `torus2d` with three axes; raises ParamError for holes or another number of axes."""
    return _plan_torus("torus3d", grid, 3)


def _plan_torus(name: str, grid: Grid, num_axes: int) -> AllReducePlan:
    if len(grid.axes) != num_axes:
        raise ParamError(f"{name} needs {num_axes} axes, and {grid} is given")
    _check_whole(grid, name)
    directions = (1, -1) if any(axis.is_closed for axis in grid.axes) else (1,)
    parts: list[Iterator[Step]] = []
    for first, direction in itertools.product(range(num_axes), directions):
        walks: list[_Walk] = []
        for i in range(num_axes):
            dim = (first + i) % num_axes
            order = ring_order(grid.shape[dim], is_closed=grid.axes[dim].kind != "line")
            # on lines, every second part goes the other way, so that parts share fewer links
            sign = direction if len(directions) > 1 else (-1) ** first
            walks.append(_Walk(dim, order[::sign]))
        parts.append(_scatter_along(grid.ids(), walks, len(parts) * grid.size))
    return AllReducePlan(name, grid, len(parts) * grid.size, merge_steps(*parts))


# ---- whole axes, one after the other -------------------------------------------------------------


def multiring(grid: Grid) -> AllReducePlan:
    """Returns the plan that reduces along one axis after the other, a smaller shard each time.

    PowerAI DDL (Cho et al. 2017) has a list of dims d_1, d_2, ..., the fastest first. Chips
    reduce-scatter along the first, then a d_1-th of the payload along the second, and so on; all
    rings of a dim run at once, each on its own shard. The gather is the mirror. n bytes take

        sum_i 2 (d_i - 1) latency_i + 2 (d_i - 1) / d_i * n / (d_1 ... d_(i-1)) / bandwidth_i

    Dims in ascending order of seconds per byte are best: swapping two neighbours i, j changes the
    time by (1/bandwidth_i - 1/bandwidth_j) (1 - 1/d_i) (1 - 1/d_j) times 2 n / (d_1 ... d_(i-1)),
    and latencies not at all. Equally fast dims are in the order of axes. A switch of d_i d_j chips
    as two dims sends the same bytes in 2 (d_i - 1) (d_j - 1) fewer steps, so a switch is cut into
    primes. A ring is not, because chips that are not neighbours would share links.

    Raises ParamError for a grid with holes.
    """
    _check_whole(grid, "multiring")
    dims = [[axis._replace(size=n) for n in _factors(axis)] for axis in grid.axes]
    flat = [dim for axis in dims for dim in axis]
    order = sorted(range(len(flat)), key=lambda i: (1 / flat[i].bandwidth, i))
    walks = [_Walk(i, ring_order(flat[i].size, is_closed=flat[i].kind != "line")) for i in order]
    ids = grid.ids().reshape([dim.size for dim in flat])
    return AllReducePlan("multiring", grid, grid.size, tuple(_scatter_along(ids, walks, 0)))


def _factors(axis: Axis) -> list[int]:
    """Returns the ring sizes of an axis: the prime factors of a switch's size, else the size."""
    if axis.kind != "switch":
        return [axis.size]
    primes: list[int] = []
    left = axis.size
    for prime in range(2, math.isqrt(axis.size) + 1):
        while left % prime == 0:
            primes.append(prime)
            left //= prime
    return [*primes, left] if left > 1 or not primes else primes


class _Walk(NamedTuple):
    """Rings along one dim of an array of chips."""

    dim: int
    order: NDArray[np.int64]  # of the positions along the dim


def _scatter_along(ids: NDArray[np.int64], walks: Sequence[_Walk], base: int) -> Iterator[Step]:
    """Yields the steps that reduce N chunks, from `base` on: one chunk for each of N chips.

    Args:
        ids: [*sizes], every chip of a grid.
        walks: the dims in the order in which they are reduced.
        base: first chunk.
    """
    count, start = ids.size, np.full(ids.size, base)
    for dim, order in walks:
        size = ids.shape[dim]
        count //= size
        rings = np.moveaxis(ids, dim, -1).reshape(-1, size)[:, order]
        first = start[rings] + count * np.arange(size, dtype=np.int64)
        yield from ring_steps(rings, first, count)
        start[rings] = first


def _check_whole(grid: Grid, name: str) -> None:
    """Raises ParamError for holes, because rings along whole axes cannot go around them."""
    if grid.holes:
        raise ParamError(f"{name} needs every chip, and {grid} is given")


# ---- pairs of rows -------------------------------------------------------------------------------


def row_pairs(grid: Grid) -> AllReducePlan:
    """Returns the plan that reduces in rings of two rows each, then along columns, around holes.

    Kumar and Jouppi 2020 (highly available pods), the two-dimensional scheme. Two adjacent rows
    without a hole are a ring of single hops: out by one row, back by the other. So pairs need no
    links that close a row, and a hole costs only its own pair. The healthy chips of other rows send
    their payload, chunk by chunk, along shortest routes to a chip of a pair, each chunk one step
    before the ring needs it: d hops cost only d steps. Then the chips at the same position in all
    pairs form a ring, whose messages go around holes where they must.

    With C columns, k pairs, p = 2 C chips per pair, and D hops for the farthest chip that forwards,
    there are 2 (D + p - 1 + k - 1) steps. Pairs are rows or columns, whichever cover more chips or,
    if equal, need fewer steps. On a torus the last row and the first may be a pair.
    Raises ParamError without two adjacent whole rows or columns.
    """
    if len(grid.axes) != 2 or any(axis.kind == "switch" for axis in grid.axes):
        raise ParamError(f"row_pairs needs rows and columns of linked chips, and {grid} is given")
    ids = grid.ids()
    choices = [(axis, _whole_pairs(grid, axis, lines)) for axis, lines in enumerate((ids, ids.T))]
    most = max(pairs.size for _, pairs in choices)
    if not most:
        raise ParamError(
            f"row_pairs needs two adjacent rows or columns without a hole, of 2 chips or more, and"
            f" {grid} has none"
        )
    plans = [_plan_pairs(grid, axis, pairs) for axis, pairs in choices if pairs.size == most]
    return min(plans, key=lambda plan: plan.num_steps)


def _plan_pairs(grid: Grid, axis: int, pairs: NDArray[np.int64]) -> AllReducePlan:
    """Returns the plan for rings of pairs, [k, p], of lines that follow each other along `axis`."""
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
    return AllReducePlan("row_pairs", grid, p * num_pairs, (*along_pairs, *across))


def _whole_pairs(grid: Grid, axis: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rings, [k, 2 C], of the most pairs of adjacent whole rows of ids, [R, C].

    Rows follow each other along `axis` of the grid. Pairs begin at the top or, if that gives more
    pairs on a torus, behind the first hole.
    """
    is_whole = [grid.holes.isdisjoint(row) for row in ids.tolist()]
    starts = [0]
    if grid.axes[axis].is_closed and not all(is_whole):
        starts.append(is_whole.index(False) + 1)
    firsts: list[NDArray[np.int64]] = []
    for start in starts if ids.shape[1] > 1 else ():  # two rows of one chip each are a line
        firsts.append(_first_rows(np.roll(is_whole, -start)) + start)
    first = max(firsts, key=len, default=np.array([], np.int64))
    size = len(ids)
    return np.concatenate([ids[first % size], ids[(first + 1) % size, ::-1]], axis=1)


def _first_rows(is_whole: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the first row of each pair of adjacent whole rows, from the top: int64 [k]."""
    rows: list[int] = []
    row = 0
    while row + 1 < len(is_whole):
        if is_whole[row] and is_whole[row + 1]:
            rows.append(row)
            row += 1
        row += 1
    return np.array(rows, np.int64)


class _Forwarders:
    """The healthy chips outside the pairs: a forest whose roots are chips of pairs."""

    def __init__(self, grid: Grid, pairs: NDArray[np.int64]) -> None:
        self._p = pairs.shape[1]
        hops = grid.distances(pairs.ravel().tolist())
        self._root = {chip: i for ring in pairs.tolist() for i, chip in enumerate(ring)}
        self._layers: list[list[tuple[int, int]]] = []  # 1, 2, ... hops away: chip, next chip
        for chip, distance in hops.items():
            if distance == 0:
                continue
            following = min(o for o, _ in grid.neighbors(chip) if hops[o] == distance - 1)
            self._root[chip] = self._root[following]
            self._layers += [[]] * (distance > len(self._layers))
            self._layers[distance - 1] = [*self._layers[distance - 1], (chip, following)]

    @property
    def depth(self) -> int:
        """Number of hops from the farthest chip to a pair."""
        return len(self._layers)

    def steps(self, count: int) -> Iterator[Step]:
        """Yields the steps: each piece, of `count` chunks, goes in the order of the ring.

        The ring begins at step `depth`. At its step t, chip i sends piece i - 1 - t
        (`plan.ring_steps`); a chip that is d hops away from chip i sends this piece d steps before.
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


# ---- planners by name ----------------------------------------------------------------------------

PLANNERS: dict[str, Callable[[Grid], AllReducePlan]] = {
    "ring": ring,
    "torus2d": torus2d,
    "torus3d": torus3d,
    "multiring": multiring,
    "row_pairs": row_pairs,
}


def make_plan(name: str, grid: Grid) -> AllReducePlan:
    """Returns the plan that a planner, given by name, makes for a grid.

    Raises ParamError for an unknown name, or if the planner cannot plan the grid. In this case, the
    error names the planners that can.
    """
    if name not in PLANNERS:
        raise ParamError(
            f"all-reduce: {name!r} is none of {', '.join(PLANNERS)}.{suggest(name, PLANNERS)}"
        )
    try:
        return PLANNERS[name](grid)
    except ParamError as error:
        able = [plan.name for plan in make_plans(grid)[0]]
        raise ParamError(
            f"{error}; {', '.join(able) or 'none of the other planners'} can"
        ) from None


def fastest_plan(grid: Grid, num_elements: int) -> AllReducePlan:
    """Returns the plan with the fewest predicted seconds for `num_elements` of 4 bytes.

    Raises ParamError if no planner can plan the grid.
    """
    plans, refusals = make_plans(grid)
    if not plans:
        raise ParamError(f"no all-reduce on {grid}: {'; '.join(refusals.values())}")
    return min(plans, key=lambda plan: measure(plan, num_elements).seconds)


def make_plans(grid: Grid) -> tuple[list[AllReducePlan], dict[str, str]]:
    """Returns all plans that planners can make, and {planner: error} for the other planners."""
    plans: list[AllReducePlan] = []
    refusals: dict[str, str] = {}
    for name in PLANNERS:
        try:
            plans.append(PLANNERS[name](grid))
        except ParamError as error:
            refusals[name] = str(error)
    return plans, refusals
