"""All axes of a torus at once: the payload is in parts, each with an order of axes of its own.

Ying et al. 2018 (ResNet-50 at supercomputer scale), sec. 3.3: one half is reduced along Y, then X,
while the other is along X, then Y. On rings each of them is halved again, and these go around in
both directions. So all links of a torus of equal sides carry as much all the time, and n bytes on N
chips with D links each take 2 n (N - 1) / N / D / bandwidth, besides latencies: `Network` of
`lingo/inspection/plan/network.py` has the same form. Where sides differ, parts share links in some
steps, and take longer than that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.multiring import Walk, check_whole, scatter_along
from lingo.mesh.allreduce.plan import Plan, Step, merge_steps, ring_order


def torus2d(grid: Grid) -> Plan:
    """Returns the plan of two axes; raises ParamError for holes or other than two axes."""
    return _plan("torus2d", grid, 2)


def torus3d(grid: Grid) -> Plan:
    """Returns the plan of three axes; raises ParamError for holes or other than three axes."""
    return _plan("torus3d", grid, 3)


def _plan(name: str, grid: Grid, num_axes: int) -> Plan:
    if len(grid.axes) != num_axes:
        raise ParamError(f"{name} needs {num_axes} axes, and {grid} is given")
    check_whole(grid, name)
    directions = (1, -1) if any(axis.is_closed for axis in grid.axes) else (1,)
    parts: list[Iterator[Step]] = []
    for first, direction in itertools.product(range(num_axes), directions):
        walks: list[Walk] = []
        for i in range(num_axes):
            dim = (first + i) % num_axes
            order = ring_order(grid.shape[dim], is_closed=grid.axes[dim].kind != "line")
            # on lines, every second part goes the other way, so that two of them share fewer links
            turn = direction if len(directions) > 1 else (-1) ** first
            walks.append(Walk(dim, order[::turn]))
        parts.append(scatter_along(grid.ids(), walks, len(parts) * grid.size))
    return Plan(name, grid, len(parts) * grid.size, merge_steps(*parts))
