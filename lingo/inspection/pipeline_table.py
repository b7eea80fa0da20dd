"""The report on a pipeline as text, with a table and a diagram, and as JSON values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from lingo.inspection import weight_table
from lingo.inspection.memory import size
from lingo.inspection.pipeline import PipelineReport
from lingo.inspection.stage_times import Simulation
from lingo.inspection.weight_table import Columns
from lingo.mesh.pipeline import Schedule, draw_text

_WIDTH = 100  # characters per line

LEFT_OUT = (
    "sending from stage to stage, everything outside of the pipeline, and the slowdown of stages"
    " that share a machine"
)


def text(report: PipelineReport, simulation: Simulation | None = None) -> str:
    """Returns a report as text: a table of stages, a diagram of the schedule, other schedules."""
    schedule = report.schedule
    repeats = f", {schedule.num_repeats} repeats" if schedule.num_repeats > 1 else ""
    title = (
        f"{report.path}: {schedule.name}, {schedule.num_stages} stages,"
        f" {schedule.num_micro_batches} micro-batches of {_shape_text(report.shape)}{repeats}"
    )
    parts = [
        _lines(title, report.location.text),
        weight_table.align_columns(_columns(report, simulation)),
        _lines(*_notes(report)),
        f"{draw_text(schedule)}\n" + _lines(*_bubbles(report)),
    ]
    if simulation:
        parts.append(_simulation_notes(simulation))
    return "\n".join(parts)


def _lines(*notes: str) -> str:
    return "".join(f"{textwrap.fill(note, _WIDTH)}\n" for note in notes)


def _columns(report: PipelineReport, simulation: Simulation | None) -> Columns:
    """Returns the table of stages with totals; FLOPs count one micro-batch, forward."""
    stages = report.stages
    flops = [stage.flops for stage in stages]
    weights = [stage.weight_bytes for stage in stages]
    activations = [stage.live * stage.input_bytes for stage in stages]
    words = {
        "stage": [*map(str, range(len(stages))), "total"],
        "layers": [*(", ".join(map(compact, stage.layers)) for stage in stages), ""],
    }
    if any(stage.devices for stage in stages):
        words["devices"] = [*(compact(stage.devices) for stage in stages), ""]
    numbers = {
        "FLOPs": [f"{n:.4g}" for n in (*flops, sum(flops))],
        "share": [*(f"{n / max(sum(flops), 1):.1%}" for n in flops), ""],
        "weights": [*map(size, (*weights, sum(weights)))],
        "passes on": [*(size(stage.output_bytes) for stage in stages), ""],
        "live": [*(str(stage.live) for stage in stages), ""],
        "boundary activations": [*map(size, (*activations, sum(activations)))],
    }
    if simulation:  # sums over all repeats
        for name in ("forward", "backward"):
            numbers[name] = [*map(_ms, map(sum, zip(*getattr(simulation, name), strict=True))), ""]
        numbers["busy"] = [*map(_ms, simulation.schedule.busy), ""]
    return Columns(words, numbers)


def _notes(report: PipelineReport) -> Iterator[str]:
    """Yields notes on how equal the stages are, and on the tensors that they keep for gradients."""
    yield (
        f"the largest stage is {report.balance:.4g} times the mean; {report.share:.1%} of the FLOPs"
        " of a forward pass are in the pipeline"
    )
    extra = report.num_inputs_kept - report.schedule.num_micro_batches * report.schedule.num_repeats
    idle = f" (and of {extra} idle iterations of the loop)" if extra else ""
    inner = "for one micro-batch at a time" if report.recomputes else "as long"
    yield (
        f"a stage keeps boundary activations, the inputs of `live` micro-batches{idle}, until they"
        f" go backward; its layers' other activations are kept {inner}, and not counted"
    )


def _bubbles(report: PipelineReport) -> Iterator[str]:
    """Yields notes on the idle time (bubble) of unequal stages, and on other schedules."""
    if not report.is_even:
        yield (
            "bubble fraction if stages were equal, as in the picture:"
            f" {report.schedule.bubble_fraction:.4f}; by their FLOPs: {report.bubble_fraction:.4f}"
        )
    for schedule, needs in report.alternatives:
        live = schedule.live_activations()
        shown = " ".join(map(str, live)) if len(live) <= 8 else f"{min(live)} to {max(live)}"
        equal = "" if report.is_even else " if stages were equal"
        yield (
            f"instead {schedule.name}: bubble fraction {schedule.bubble_fraction:.4f}{equal},"
            f" live {shown}; needs {needs}"
        )


def _simulation_notes(simulation: Simulation) -> str:
    schedule = simulation.schedule
    notes = _lines(
        f"SIMULATION of a step on {schedule.num_stages} devices: forward, backward and busy, from"
        f" the time of single layers here for a micro-batch. It leaves out {LEFT_OUT}.",
        f"makespan {_ms(schedule.makespan)}, bubble fraction {schedule.bubble_fraction:.4f}; layers"
        f" one after the other {_ms(simulation.sequential_seconds)}, {simulation.speedup:.3g} times"
        " as long",
    )
    if simulation.times:  # one unwrapped line, so that it can be copied
        notes += f"stages of equal seconds: --set='PipelinedChain.times={simulation.times}'\n"
    return notes


def compact(numbers: Sequence[int]) -> str:
    """Returns sorted numbers as a text of ranges: "0-3, 8-11"; "-" if there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return ", ".join(ends) or "-"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


def _shape_text(shape: Any) -> str:
    if isinstance(shape[0], Sequence):
        return f"({', '.join(map(_shape_text, shape))})"
    return str(list(shape))


def as_json(report: PipelineReport, simulation: Simulation | None = None) -> dict[str, Any]:
    """Returns a report as values for `json.dumps`."""
    values = {
        "path": report.path,
        "shape": report.shape,
        "flops_share": report.share,
        "balance": report.balance,
        "where": report.location.text,
        "recomputes": report.recomputes,
        "inputs_kept": report.num_inputs_kept,
        "bubble_fraction": report.bubble_fraction,
        "schedule": _schedule_json(report.schedule),
        "stages": [
            stage._asdict() | {"layers": [list(part) for part in stage.layers]}
            for stage in report.stages
        ],
        "other_schedules": [_schedule_json(s) | {"needs": n} for s, n in report.alternatives],
    }
    if simulation:
        values["simulation"] = {
            "is_simulation": True,
            "left_out": LEFT_OUT,
            "forward_seconds": simulation.forward,
            "backward_seconds": simulation.backward,
            "sequential_seconds": simulation.sequential_seconds,
            "times": simulation.times,
            "makespan_seconds": simulation.schedule.makespan,
            "busy_seconds": simulation.schedule.busy,
            "bubble_fraction": simulation.schedule.bubble_fraction,
            "speedup": simulation.speedup,
        }
    return values


def _schedule_json(schedule: Schedule) -> dict[str, Any]:
    names = ("name", "num_stages", "num_micro_batches", "num_repeats", "makespan")
    values = {name: getattr(schedule, name) for name in (*names, "bubble_fraction")}
    return values | {"live_activations": schedule.live_activations()}
