"""The report of a pipeline for people, and as JSON values."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from lingo.inspection import weight_table
from lingo.inspection.pipeline import Report, Stage
from lingo.inspection.units import size
from lingo.inspection.weight_table import Columns
from lingo.mesh.pipeline import drawing
from lingo.mesh.pipeline.schedule import Schedule

_WIDTH = 100  # characters of a line


def text(report: Report) -> str:
    """Returns a report for people: a table of stages, the clock, what else there is."""
    schedule, flops = report.schedule, sum(stage.flops for stage in report.stages)
    rounds = f", {schedule.num_rounds} rounds" if schedule.num_rounds > 1 else ""
    shape = _shown(report.shape)
    title = (
        f"{report.path}: {schedule.name}, {schedule.num_stages} stages,"
        f" {schedule.num_micro_batches} micro-batches of {shape}{rounds}"
    )
    notes = [
        f"the largest stage is {report.balance:.4g} times the mean; {report.share:.1%} of the FLOPs"
        " of a forward pass are in the pipeline",
        _kept(report),
    ]
    return "".join(
        [
            *(f"{textwrap.fill(line, _WIDTH)}\n" for line in (title, report.where)),
            f"\n{_stages(report.stages, flops)}\n",
            *(f"{textwrap.fill(line, _WIDTH)}\n" for line in notes),
            f"\n{drawing.text(schedule, _WIDTH)}\n",
            *(f"{textwrap.fill(line, _WIDTH)}\n" for line in _bubbles(report)),
            f"\n{_others(report)}",
        ]
    )


def compact(numbers: Sequence[int]) -> str:
    """Returns rising numbers with runs as their ends: 0-3, 8-11; "-" if there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return ", ".join(ends) or "-"


def _stages(stages: Sequence[Stage], flops: int) -> str:
    """Returns the table of stages; FLOPs are forward, of one micro-batch."""
    words = {
        "stage": [*map(str, range(len(stages))), "total"],
        "layers": [*(", ".join(map(compact, stage.layers)) for stage in stages), ""],
    }
    if any(stage.devices for stage in stages):
        words["devices"] = [*(compact(stage.devices) for stage in stages), ""]
    weights = [stage.weight_bytes for stage in stages]
    kept = [stage.live * stage.input_bytes for stage in stages]
    numbers = {
        "FLOPs": [f"{n:.4g}" for n in (*(stage.flops for stage in stages), flops)],
        "share": [*(f"{stage.flops / max(flops, 1):.1%}" for stage in stages), ""],
        "weights": [*map(size, (*weights, sum(weights)))],
        "hands on": [*(size(stage.output_bytes) for stage in stages), ""],
        "live": [*(str(stage.live) for stage in stages), ""],
        "boundary activations": [*map(size, (*kept, sum(kept)))],
    }
    return weight_table.aligned(Columns(words, numbers))


def _kept(report: Report) -> str:
    """Returns what a stage keeps at once for the gradient, and what of it is not counted."""
    num = report.schedule.num_micro_batches * report.schedule.num_rounds
    loop = f" (and of {report.num_kept - num} idle turns of the loop)"
    inner = "there for one micro-batch at a time" if report.recomputes else "kept as long"
    return (
        "a stage keeps boundary activations, the inputs of `live` micro-batches"
        f"{loop if report.num_kept > num else ''}, until they go backward; what its layers compute"
        f" from them is {inner}, and not counted"
    )


def _bubbles(report: Report) -> list[str]:
    """Returns which of two bubbles the clock has, where stages differ."""
    if report.is_even:
        return []
    return [
        f"bubble fraction if stages were equal, as the clock has them:"
        f" {report.schedule.bubble_fraction:.4f}; by their FLOPs: {report.bubble_fraction:.4f}"
    ]


def _others(report: Report) -> str:
    """Returns a line for each schedule that there could be, of equal stages."""
    found = [other.schedule for other in report.others]
    words = {
        "other schedules": [schedule.name for schedule in found],
        "bubble" if report.is_even else "bubble if equal": [
            f"{schedule.bubble_fraction:.4f}" for schedule in found
        ],
        "live": [_live(schedule) for schedule in found],
        "needs": [other.needs for other in report.others],
    }
    lines = weight_table.aligned(Columns(words, {})).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _live(schedule: Schedule) -> str:
    live = schedule.live_activations()
    if len(live) > 8:
        return f"{min(live)} to {max(live)}"
    return " ".join(map(str, live))


def _shown(shape: Any) -> str:
    if isinstance(shape[0], Sequence):
        return f"({', '.join(map(_shown, shape))})"
    return weight_table.listed(tuple(shape))


def as_json(report: Report) -> dict[str, Any]:
    """Returns a report as JSON values."""
    return {
        "path": report.path,
        "shape": _lists(report.shape),
        "flops_share": report.share,
        "balance": report.balance,
        "where": report.where,
        "recomputes": report.recomputes,
        "inputs_kept": report.num_kept,
        "bubble_fraction": report.bubble_fraction,
        "schedule": _clock(report.schedule),
        "stages": [
            stage._asdict()
            | {"layers": [list(part) for part in stage.layers], "devices": list(stage.devices)}
            for stage in report.stages
        ],
        "other_schedules": [_clock(o.schedule) | {"needs": o.needs} for o in report.others],
    }


def _lists(shape: Any) -> list[Any]:
    return [_lists(n) if isinstance(n, Sequence) else n for n in shape]


def _clock(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "num_stages": schedule.num_stages,
        "num_micro_batches": schedule.num_micro_batches,
        "num_rounds": schedule.num_rounds,
        "makespan": schedule.makespan,
        "bubble_fraction": schedule.bubble_fraction,
        "live_activations": list(schedule.live_activations()),
    }
