"""An axis after the other: each ring reduces the shard that the rings before have left.

PowerAI DDL (Cho et al. 2017) has a list of dims d_1, d_2, ..., the fastest first. Chips
reduce-scatter along the first, then a d_1-th of the payload along the second, and so on; all rings
of a dim run at once, on shards of their own. The gather is the mirror. n bytes take

    sum_i 2 (d_i - 1) latency_i + 2 (d_i - 1) / d_i * n / (d_1 ... d_(i-1)) / bandwidth_i

Dims in ascending order of seconds per byte are best: swapping two neighbours i, j changes the time
by (1/bandwidth_i - 1/bandwidth_j) (1 - 1/d_i) (1 - 1/d_j) times 2 n / (d_1 ... d_(i-1)), and
latencies not at all. Of dims that are as fast, the first axis is first. A switch of d_i d_j chips
as two dims sends as many bytes in 2 (d_i - 1) (d_j - 1) fewer steps: so it is cut into primes. A
ring is not: chips that are not neighbours would share links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Axis, Grid
from lingo.mesh.allreduce.plan import Plan, Step, ring_order, ring_steps


class Walk(NamedTuple):
    """Rings along one dim of an array of chips."""

    dim: int
    order: NDArray[np.int64]  # of the positions along the dim


def scatter_along(ids: NDArray[np.int64], walks: Sequence[Walk], base: int) -> Iterator[Step]:
    """Yields the steps that reduce chunks base ... base + N, one for each of N chips.

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


def multiring(grid: Grid) -> Plan:
    """Returns the plan with the best dims; raises ParamError for a grid with holes."""
    check_whole(grid, "multiring")
    dims = [[axis._replace(size=n) for n in factors(axis)] for axis in grid.axes]
    flat = [one for axis in dims for one in axis]
    order = sorted(range(len(flat)), key=lambda i: (1 / flat[i].bandwidth, i))
    walks = [Walk(i, ring_order(flat[i].size, is_closed=flat[i].kind != "line")) for i in order]
    ids = grid.ids().reshape([one.size for one in flat])
    return Plan("multiring", grid, grid.size, tuple(scatter_along(ids, walks, 0)))


def factors(axis: Axis) -> list[int]:
    """Returns the sizes of the rings of an axis: the primes of a switch, else its size."""
    if axis.kind != "switch":
        return [axis.size]
    found: list[int] = []
    left = axis.size
    for prime in range(2, math.isqrt(axis.size) + 1):
        while left % prime == 0:
            found.append(prime)
            left //= prime
    return [*found, left] if left > 1 or not found else found


def check_whole(grid: Grid, name: str) -> None:
    """Raises ParamError for holes, which rings along whole axes do not go around."""
    if grid.holes:
        raise ParamError(f"{name} needs every chip, and {grid} is given")
