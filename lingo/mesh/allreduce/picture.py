"""A picture of a plan: chips, holes, and the bytes that each link carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lingo.config.base.errors import check_package
from lingo.config.params import ParamError
from lingo.mesh.allreduce.cost import Cost
from lingo.mesh.allreduce.grid import Grid
from lingo.mesh.allreduce.plan import Plan

Point = tuple[float, float]


def write(plan: Plan, cost: Cost, path: Path) -> None:
    """Writes a picture, in the format of the path's ending: .png, .svg or .pdf.

    Each link is two lines, one for each direction; links that close a ring end in the margin.
    Raises MissingPackage without matplotlib, and ParamError for three axes, and for switches.
    """
    grid = plan.grid
    if len(grid.axes) > 2 or any(axis.kind == "switch" for axis in grid.axes):
        raise ParamError(f"a picture shows rings and lines in one or two axes, and not a {grid}")
    check_package("matplotlib", "a picture of a plan", extra="data")
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    lines, loads = _lines(grid, cost)
    rows, columns = (1, *grid.shape)[-2:]
    figure: Any = Figure(figsize=(3 + 0.3 * columns, 1.7 + 0.3 * rows), layout="constrained")
    axes: Any = figure.subplots()
    drawn = LineCollection(lines, cmap="viridis_r", linewidths=2, zorder=1)
    drawn.set_array(loads / 1e6)
    axes.add_collection(drawn)
    for chips, style in ((grid.healthy, "ks"), (np.array(sorted(grid.holes), int), "rx")):
        points = np.array([_point(grid, chip) for chip in chips.tolist()]).reshape(-1, 2)
        axes.plot(points[:, 0], points[:, 1], style, markersize=4, zorder=2)
    axes.set(xlim=(-1, columns), ylim=(rows, -1), aspect="equal", xlabel="column", ylabel="row")
    figure.colorbar(drawn, label="MB on a link, one direction", shrink=0.8)
    axes.set_title(
        f"{plan.name} on a {grid}: {cost.steps:,} steps, {1e3 * cost.seconds:.3g} ms, simulated",
        fontsize="medium",
    )
    figure.savefig(path, dpi=100)


def _point(grid: Grid, chip: int) -> Point:
    """Returns x and y."""
    row, column = (0, *grid.position(chip))[-2:]
    return float(column), float(row)


def _lines(grid: Grid, cost: Cost) -> tuple[list[tuple[Point, Point]], np.ndarray]:
    """Returns a line for each link that carries something, and the bytes on it."""
    lines: list[tuple[Point, Point]] = []
    loads: list[float] = []
    for link in np.flatnonzero(cost.link_bytes).tolist():
        chip, axis = link // 2 // len(grid.axes), grid.link_axis(link)
        direction = -1 if link % 2 else 1
        x, y = _point(grid, chip)
        is_row = axis == len(grid.axes) - 1
        aside = 0.12 * direction
        dx, dy = (direction, 0) if is_row else (0, direction)
        ends = [((x, y), (x + dx, y + dy))]
        position = grid.position(chip)[axis]
        if not 0 <= position + direction < grid.shape[axis]:  # closes a ring
            far = position - direction * (grid.shape[axis] - 1)
            x2, y2 = (far, y) if is_row else (x, far)
            ends = [((x, y), (x + dx / 2, y + dy / 2)), ((x2 - dx / 2, y2 - dy / 2), (x2, y2))]
        shift = (0.0, aside) if is_row else (aside, 0.0)
        for one, other in ends:
            moved = [(px + shift[0], py + shift[1]) for px, py in (one, other)]
            lines.append((moved[0], moved[1]))
            loads.append(cost.link_bytes[link])
    return lines, np.array(loads)
