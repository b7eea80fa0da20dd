"""What `lingo plan --allreduce` does: plans all-reduces, checks their sums, prints their costs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from lingo.cli import command
from lingo.cli.command import UsageError
from lingo.inspection.plan.hardware import HARDWARE, Hardware, read
from lingo.mesh.allreduce import picture
from lingo.mesh.allreduce.cost import Cost, measure
from lingo.mesh.allreduce.execution import is_exact
from lingo.mesh.allreduce.grid import Axis, Grid, make_grid
from lingo.mesh.allreduce.plan import Plan
from lingo.mesh.allreduce.planner import PLANNERS, make_plan, make_plans

ALL = "all"
ELEMENTS = 25_557_032  # weights of ResNet-50
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
_OWN = ("mesh", "holes", "elements")
_FOREIGN = ("exp", "run", "set", "devices", "batch", "top", "price", "verify", "calibrate")


class _Result(NamedTuple):
    plan: Plan
    cost: Cost


def define(values: flags.FlagValues) -> None:
    """Defines the flags."""
    names = (*PLANNERS, ALL)
    command.string("allreduce", f"Plan an all-reduce: {', '.join(names)}.", values)
    command.string("mesh", "Of --allreduce: the sizes of its axes, as 16x32.", values)
    command.strings("holes", "Failed chips: sizes and first position, as 2x2@4,6.", values)
    command.choice("links", ("torus", "mesh"), "Whether links close the rows of chips.", values)
    command.integer("elements", f"Of the payload; {ELEMENTS:,} if left out.", values, lower_bound=1)
    command.choice("payload", (*ELEMENT_BYTES,), "The type of what is sent.", values)


def is_asked(values: flags.FlagValues) -> bool:
    """Returns whether there is --allreduce; raises UsageError for flags of other plans."""
    is_asked = values.allreduce is not None
    for name in _FOREIGN if is_asked else _OWN:
        if values[name].value not in (None, False, []):
            wrong = f"--allreduce plans no experiment: leave out --{name}"
            raise UsageError(wrong if is_asked else f"--{name} is of --allreduce, which is missing")
    return is_asked


def print_allreduce(values: flags.FlagValues) -> int:
    """Prints plans of all-reduce; returns 1 if none is possible.

    Raises UsageError or ParamError for flags that are wrong, and if the planner named refuses.
    """
    grid = _grid(values)
    element_bytes, num_elements = ELEMENT_BYTES[values.payload], values.elements or ELEMENTS
    if values.allreduce == ALL:
        if values.plot:
            raise UsageError(f"--plot draws one plan: name a planner in place of {ALL}")
        plans, refusals = make_plans(grid)
    else:
        plans, refusals = [make_plan(values.allreduce, grid)], {}
    results = []
    for plan in plans:
        if not is_exact(plan):
            raise RuntimeError(f"a fault of lingo: the sums of {plan.name} on {grid} are wrong")
        cost = measure(plan, num_elements, element_bytes=element_bytes)
        results.append(_Result(plan, cost))
    results.sort(key=lambda one: one.cost.seconds)
    if values.plot:
        picture.write(results[0].plan, results[0].cost, Path(values.plot))
    if values.format == "json":
        print(json.dumps(_as_json(grid, results, refusals)))
    else:
        payload = f"{num_elements:,} elements of {values.payload}"
        print(_text(grid, payload, results, refusals), end="")
    return 0 if results else 1


def _grid(values: flags.FlagValues) -> Grid:
    """Returns the grid of the flags, with the links of the hardware."""
    if values.mesh is None or not re.fullmatch(r"\d{1,9}(x\d{1,9})*", values.mesh):
        given = "is missing" if values.mesh is None else f"is {values.mesh!r}"
        raise UsageError(f"--mesh {given}: --allreduce needs sizes, as --mesh=16x32")
    sizes = [int(size) for size in values.mesh.split("x")]
    hardware = read(values.hardware or next(iter(HARDWARE)))
    return make_grid(_axes(hardware, sizes, values.links), values.holes)


def _axes(hardware: Hardware, sizes: Sequence[int], links: str) -> list[Axis]:
    """Returns axes with rates of the hardware: sides of its torus, or its dimensions, inner last.

    A TPU's cores in one chip sum before the chips do, so they are no axis.
    """
    if hardware.torus:
        side = hardware.dimensions[-1]
        kind = "ring" if links == "torus" else "line"
        return [Axis(size, kind, side.latency, side.bandwidth) for size in sizes]
    dimensions = hardware.dimensions[: len(sizes)][::-1]
    if len(dimensions) < len(sizes):
        raise UsageError(
            f"--mesh has {len(sizes)} axes, and the network of {hardware.name} has"
            f" {len(dimensions)}, the innermost last"
        )
    axes = []
    for size, one in zip(sizes, dimensions, strict=True):
        if size > one.size:
            raise UsageError(
                f"--mesh has an axis of {size:,}, and {hardware.name} has {one.size:,} there:"
                " the innermost axis is the last"
            )
        kind = one.kind if one.kind == "switch" or one.wraps else "line"
        axes.append(Axis(size, kind, one.latency, one.bandwidth))
    return axes


def _text(grid: Grid, payload: str, results: Sequence[_Result], refusals: dict[str, str]) -> str:
    """Returns the table of plans, and why other planners refuse."""
    lines = [
        f"all-reduce of {payload} on {grid.num_healthy:,} chips, {grid}",
        "Simulated: every chip ends with the sum of all; times are predictions of alpha-beta.",
        "",
        "planner     steps     MB sent by a chip   on a link   messages on a link   ms",
    ]
    for plan, cost in results:
        sent, link = cost.bytes_sent / 1e6, cost.max_link_bytes / 1e6
        lines.append(
            f"{plan.name:9} {cost.steps:7,} {sent:21,.4g} {link:11,.4g} {cost.congestion:20}"
            f"   {1e3 * cost.seconds:.4g}"
        )
    lines += [""] * bool(refusals)
    lines += [f"{name}: {why}" for name, why in refusals.items()]
    return "".join(f"{line}\n" for line in lines)


def _as_json(grid: Grid, results: Sequence[_Result], refusals: dict[str, str]) -> dict[str, Any]:
    """Returns what the text has, and more digits."""
    plans = []
    for plan, cost in results:
        fields = {k: v for k, v in cost._asdict().items() if k != "link_bytes"}
        plans.append({"planner": plan.name, **fields, "max_link_bytes": cost.max_link_bytes})
    return {
        "is_prediction": True,
        "mesh": grid.shape,
        "chips": grid.num_healthy,
        "plans": plans,
        "refusals": refusals,
    }
