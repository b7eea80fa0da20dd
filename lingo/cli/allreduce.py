"""What `lingo plan --allreduce` does: plans all-reduces, checks their sums, prints their costs."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.cli.command import FormatOptions, UsageError
from lingo.config.count_text import count_text
from lingo.config.options import option, option_class
from lingo.inspection.plan.hardware import HARDWARE, Hardware, read
from lingo.mesh.allreduce import picture
from lingo.mesh.allreduce.cost import Cost, measure
from lingo.mesh.allreduce.execution import is_exact
from lingo.mesh.allreduce.grid import Axis, Grid, make_grid
from lingo.mesh.allreduce.plan import Plan
from lingo.mesh.allreduce.planner import PLANNERS, make_plan, make_plans

ALL = "all"
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
MAX_ELEMENTS = 10**15
_OWN = ("mesh", "holes", "links", "elements", "payload")
_FLAGS = ("allreduce", *_OWN, "hardware", "format", "plot")


class _Result(NamedTuple):
    plan: Plan
    cost: Cost


@option_class
class AllreduceOptions(FormatOptions):
    """The options of plans of all-reduce, and those that they share with other plans."""

    allreduce: str | None = option(f"Plan an all-reduce: {', '.join((*PLANNERS, ALL))}.")
    mesh: str | None = option("Of --allreduce: the sizes of its axes, as 16x32.")
    holes: Sequence[str] = option("Failed chips: sizes and first position, as 2x2@4,6.", default=())
    links: Literal["torus", "mesh"] = option(
        "Whether links close the rows of chips.", default="torus"
    )
    elements: int = option(
        "Of the payload, as many as ResNet-50 has weights.",
        default=25_557_032,
        minimum=1,
        maximum=MAX_ELEMENTS,
    )
    payload: Literal["float32", "bfloat16"] = option("The type of what is sent.", default="float32")
    hardware: str | None = option(f"{', '.join(HARDWARE)}, or a file of measurements.")
    plot: str | None = option("Draw the ways: FILE.png, FILE.svg or FILE.pdf.")


def find_planner(options: AllreduceOptions) -> str | None:
    """Returns the planner of --allreduce or None; raises UsageError for flags of other plans."""
    if options.allreduce is None:
        if own := sorted(options.flag_names.intersection(_OWN)):
            raise UsageError(f"--{own[0]} is of --allreduce, which is missing")
        return None
    options.refuse_others(_FLAGS, "--allreduce plans no experiment")
    return options.allreduce


def print_allreduce(planner: str, options: AllreduceOptions) -> int:
    """Prints plans of all-reduce; returns 1 if none is possible.

    Raises UsageError or ParamError for flags that are wrong, and if the planner named refuses.
    """
    hardware = read(options.hardware or next(iter(HARDWARE)))
    grid = _grid(options, hardware)
    element_bytes, num_elements = ELEMENT_BYTES[options.payload], options.elements
    if planner == ALL:
        if options.plot:
            raise UsageError(f"--plot draws one plan: name a planner in place of {ALL}")
        plans, refusals = make_plans(grid)
    else:
        plans, refusals = [make_plan(planner, grid)], {}
    results = []
    for plan in plans:
        if not is_exact(plan):
            raise RuntimeError(f"a fault of lingo: the sums of {plan.name} on {grid} are wrong")
        cost = measure(plan, num_elements, element_bytes=element_bytes)
        results.append(_Result(plan, cost))
    results.sort(key=lambda one: one.cost.seconds)
    if options.plot:
        picture.write(results[0].plan, results[0].cost, Path(options.plot))
    if options.as_json:
        given = {"elements": num_elements, "payload": options.payload, "hardware": hardware.name}
        print(json.dumps(_as_json(grid, given, results, refusals)))
    else:
        payload = f"{count_text(num_elements, 'element')} of {options.payload}"
        print(_text(grid, payload, results, refusals), end="")
    return 0 if results else 1


def _grid(options: AllreduceOptions, hardware: Hardware) -> Grid:
    """Returns the grid of the flags, with the links of the hardware.

    With --hardware the mesh must be a slice of its torus, and closes those sides that it can.
    """
    if options.mesh is None or not re.fullmatch(r"\d{1,9}(x\d{1,9})*", options.mesh):
        given = "is missing" if options.mesh is None else f"is {options.mesh!r}"
        raise UsageError(f"--mesh {given:.80}: --allreduce needs sizes, as --mesh=16x32")
    sizes = [int(size) for size in options.mesh.split("x")]
    if not hardware.torus:
        if "links" in options.flag_names:
            raise UsageError(
                f"--links={options.links} is of a torus, and {hardware.name} has none: leave it out"
            )
        axes = _dimension_axes(hardware, sizes)
    else:
        axes = _torus_axes(hardware, sizes, options.links, is_slice=options.hardware is not None)
    return make_grid(axes, options.holes)


def _torus_axes(
    hardware: Hardware, sizes: Sequence[int], links: str, *, is_slice: bool
) -> list[Axis]:
    """Returns axes with the rates of a torus's sides: the largest axis has those of the largest.

    With `is_slice` the mesh must be inside it: then only sides of a multiple of 4 are closed, as
    `Hardware.arrange` has it. Without, axes after the last side have that one's rates. A TPU's
    cores in one chip sum before the chips do, so they are no axis.
    """
    sides = sorted(hardware.dimensions[-hardware.torus :], key=lambda one: -one.size)
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    largest, asked = [one.size for one in sides], [sizes[i] for i in order]
    is_inside = len(asked) <= len(largest) and all(map(operator.le, asked, largest))
    if is_slice and not is_inside:
        raise UsageError(
            f"--mesh={'x'.join(map(str, sizes)):.80} is not in the torus of {hardware.name},"
            f" {' x '.join(map(str, largest))} chips; without --hardware it may be any"
        )
    axes: dict[int, Axis] = {}
    for place, i in enumerate(order):
        size, side = sizes[i], sides[min(place, len(sides) - 1)]
        is_closed = links == "torus" and (not is_slice or (side.wraps and size % 4 == 0))
        axes[i] = Axis(size, "ring" if is_closed else "line", side.latency, side.bandwidth)
    return [axes[i] for i in range(len(sizes))]


def _dimension_axes(hardware: Hardware, sizes: Sequence[int]) -> list[Axis]:
    """Returns axes with the rates of a network's dimensions, the inner one last."""
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
        f"all-reduce of {payload} on {count_text(grid.num_healthy, 'chip')}, {grid}",
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


def _as_json(
    grid: Grid, given: dict[str, Any], results: Sequence[_Result], refusals: dict[str, str]
) -> dict[str, Any]:
    """Returns what the text has, and more digits."""
    plans = []
    for plan, cost in results:
        fields = {k: v for k, v in cost._asdict().items() if k != "link_bytes"}
        plans.append({"planner": plan.name, **fields, "max_link_bytes": cost.max_link_bytes})
    return {
        "is_prediction": True,
        **given,
        "mesh": grid.shape,
        "links": [axis.kind for axis in grid.axes],
        "holes": [grid.position(chip) for chip in sorted(grid.holes)],
        "chips": grid.num_healthy,
        "plans": plans,
        "refusals": refusals,
    }
