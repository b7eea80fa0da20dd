"""The cost of a plan: steps, bytes, load of links, and seconds by the alpha-beta model.

A step takes the longest latency of its messages plus the time of its slowest link, and steps follow
one another. So the seconds are a prediction, which leaves out the start of messages, overlap, and
other traffic.

`write_picture` draws chips, holes, and the bytes that each link carries.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lingo.config.base.errors import check_package
from lingo.config.params import ParamError
from lingo.mesh.allreduce.grid import Grid, Route
from lingo.mesh.allreduce.plan import AllReducePlan, Step


class Cost(NamedTuple):
    """The cost of an all-reduce of a payload."""

    steps: int
    padding: int  # elements that make the chunks equal
    bytes_sent: int  # by the chip that sends the most
    bytes_of_all: int  # sent by all chips together
    link_bytes: NDArray[np.float64]  # [links], in one direction
    congestion: int  # most messages on a link in one step, in one direction
    congested_steps: int  # steps with two or more messages on a link, in one direction
    seconds: float

    @property
    def max_link_bytes(self) -> float:
        return float(self.link_bytes.max(initial=0.0))


class _StepCost(NamedTuple):
    sent_bytes: NDArray[np.float64]  # [P] bytes that each chip sends
    link_bytes: NDArray[np.float64]
    congestion: int
    seconds: float


def measure(plan: AllReducePlan, num_elements: int, *, element_bytes: int = 4) -> Cost:
    """Returns the cost for a payload of `num_elements`; raises ParamError below 1 element."""
    if num_elements < 1:
        raise ParamError(f"a payload of {num_elements} elements: give 1 or more")
    length = -(-num_elements // plan.num_chunks)
    known: dict[tuple[object, ...], _StepCost] = {}
    times: Counter[tuple[object, ...]] = Counter()
    steps = list(plan.steps())  # keeps the arrays alive, because their ids identify a step
    route = functools.cache(plan.grid.route)
    for step in steps:
        key = tuple((id(part.source), id(part.target), part.num_chunks) for part in step)
        if key not in known:
            known[key] = _step_cost(step, plan.grid, route, length * element_bytes)
        times[key] += 1
    sent, link_bytes = np.zeros(plan.grid.size), np.zeros(plan.grid.num_links)
    for key, number in times.items():
        sent += number * known[key].sent_bytes
        link_bytes += number * known[key].link_bytes
    return Cost(
        steps=len(steps),
        padding=length * plan.num_chunks - num_elements,
        bytes_sent=int(sent.max()),
        bytes_of_all=int(sent.sum()),
        link_bytes=link_bytes,
        congestion=max((cost.congestion for cost in known.values()), default=0),
        congested_steps=sum(n for key, n in times.items() if known[key].congestion > 1),
        seconds=sum(n * known[key].seconds for key, n in times.items()),
    )


def _step_cost(
    step: Step, grid: Grid, route: Callable[[int, int], Route], chunk_bytes: int
) -> _StepCost:
    sent, link_bytes = np.zeros(grid.size), np.zeros(grid.num_links)
    messages, latency = np.zeros(grid.num_links, int), 0.0
    for transfers in step:
        size = transfers.num_chunks * chunk_bytes
        np.add.at(sent, transfers.source, size)
        pairs = zip(transfers.source.tolist(), transfers.target.tolist(), strict=True)
        routes = [route(source, target) for source, target in pairs]
        latency = max([latency, *(path.latency for path in routes)])
        links = np.fromiter((link for path in routes for link in path.links), int)
        np.add.at(link_bytes, links, size)
        np.add.at(messages, links, 1)
    rates = np.array([grid.axes[grid.link_axis(link)].bandwidth for link in range(grid.num_links)])
    slowest = float((link_bytes / rates).max(initial=0.0))
    return _StepCost(sent, link_bytes, int(messages.max(initial=0)), latency + slowest)


# ---- the picture ---------------------------------------------------------------------------------


Point = tuple[float, float]


def write_picture(plan: AllReducePlan, cost: Cost, path: Path) -> None:
    """Writes a picture, in the format of the path's ending: .png, .svg or .pdf.

    Each link is two lines, one for each direction; links that close a ring end in the margin.
    Raises MissingPackage without matplotlib, and ParamError for three axes or more, or switches.
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
    """Returns a chip's x and y."""
    row, column = (0, *grid.position(chip))[-2:]
    return float(column), float(row)


def _lines(grid: Grid, cost: Cost) -> tuple[list[tuple[Point, Point]], np.ndarray]:
    """Returns a line for each link that carries bytes, and the number of these bytes."""
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
        for start, end in ends:
            moved = [(px + shift[0], py + shift[1]) for px, py in (start, end)]
            lines.append((moved[0], moved[1]))
            loads.append(cost.link_bytes[link])
    return lines, np.array(loads)
