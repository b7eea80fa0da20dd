"""All axes of a torus at once: the payload is in as many parts, each with an order of its own.

Ying et al. 2018 (ResNet-50 at supercomputer scale), sec. 3.3: one half is reduced along Y, then X,
while the other is along X, then Y. Every second part goes around the other way, so that on rings
the halves never share a link in one direction, also where sides differ. On lines and switches of
unequal sides they do in some steps; so do the three parts of three dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.multiring import Walk, check_whole, scatter_along
from lingo.mesh.allreduce.plan import Plan, Step, merge_steps, ring_order


def torus2d(grid: Grid) -> Plan:
    """Returns the plan of two halves; raises ParamError for holes or other than two axes."""
    return _plan("torus2d", grid, 2)


def torus3d(grid: Grid) -> Plan:
    """Returns the plan of three thirds; raises ParamError for holes or other than three axes."""
    return _plan("torus3d", grid, 3)


def _plan(name: str, grid: Grid, num_axes: int) -> Plan:
    if len(grid.axes) != num_axes:
        raise ParamError(f"{name} needs {num_axes} axes, and {grid} is given")
    check_whole(grid, name)
    parts: list[Iterator[Step]] = []
    for part in range(num_axes):
        walks: list[Walk] = []
        for i in range(num_axes):
            dim = (part + i) % num_axes
            order = ring_order(grid.shape[dim], is_closed=grid.axes[dim].kind != "line")
            walks.append(Walk(dim, order if part % 2 == 0 else order[::-1]))
        parts.append(scatter_along(grid.ids(), walks, part * grid.size))
    return Plan(name, grid, num_axes * grid.size, merge_steps(*parts))
