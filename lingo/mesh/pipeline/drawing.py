"""Schedules of pipelines as text and as pictures: a row for each stage, time to the right.

    stage 0  0 1 2 . . . . 2<<<1<<<0<<<
    stage 1  . 0 1 2 . . 2<<<1<<<0<<<. .

Axes of pictures: K stages, downwards; H height, W width, 3 for red, green, blue.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lingo.config.params import ParamError
from lingo.mesh.pipeline.schedule import Schedule, Work

_MIN_WIDTH = 40  # characters of a text
_BREAK = " // "
_FINEST = 4  # columns that the shortest step takes at most

_WIDTH, _HEIGHT = 1024, 512  # pixels of a picture at most
_MAX_CELL = 32  # pixels
_IDLE = (208, 208, 208)
_FORWARD = ((173, 208, 234), (8, 48, 107))  # of the first micro-batch, of the last
_BACKWARD = ((253, 208, 162), (140, 45, 4))


def text(schedule: Schedule, width: int = 100) -> str:
    """Returns a drawing in characters; below it what it means, and totals, which are exact.

    A column is a unit of time, or several: so many that the shortest step takes four columns at
    most. Of a schedule that is wider than the lines the beginning and the end are drawn.

    Args:
        schedule: what to draw.
        width: characters of a line at most, 40 or more.

    Raises:
        ParamError: if the width is below 40.
    """
    if width < _MIN_WIDTH:
        raise ParamError(f"{width=} is too narrow to draw a schedule; it needs {_MIN_WIDTH}")
    unit = _unit(schedule)
    cell = len(str(schedule.num_micro_batches - 1)) + 1
    digits = len(str(schedule.num_stages - 1))
    shown = _shown(_column(schedule.makespan, unit), cell, width - digits - len("stage   "))
    rows = [
        f"stage {i:>{digits}}  " + _BREAK.join(_row(stage, unit, cell, part) for part in shown)
        for i, stage in enumerate(schedule.by_stage())
    ]
    notes = [_title(schedule), _legend(schedule, unit, cell, shown), *_totals(schedule)]
    title, *below = [textwrap.fill(note, width, subsequent_indent="  ") for note in notes]
    return "\n".join([title, *(row.rstrip() for row in rows), *below])


def pixels(schedule: Schedule) -> NDArray[np.uint8]:
    """Returns a picture, uint8 [H, W, 3], at most 512 by 1024, of a schedule of any size.

    Forward steps are blue, backward steps orange, later micro-batches darker, idle time grey. Where
    time or stages do not fit, a pixel has the mean colour of what it stands for.
    """
    makespan, num_stages = schedule.makespan, schedule.num_stages
    width = min(makespan * min(max(_WIDTH // makespan, 1), _MAX_CELL), _WIDTH)
    edges = np.linspace(0, makespan, width + 1)
    last = max(schedule.num_micro_batches - 1, 1)
    rows = np.stack([_means(stage, last, edges) for stage in schedule.by_stage()])
    joined = -(-num_stages // _HEIGHT)
    starts = np.arange(0, num_stages, joined)
    counts = np.diff(np.append(starts, num_stages))
    means = np.add.reduceat(rows, starts, axis=0) / counts[:, None, None]
    tall = min(max(_HEIGHT // num_stages, 1), _MAX_CELL)
    return means.round().astype(np.uint8).repeat(tall, axis=0)


def _shown(total: int, cell: int, room: int) -> list[range]:
    """Returns which columns fit, so many characters each: all, or the first and the last."""
    if total * cell <= room:
        return [range(total)]
    kept = (room - len(_BREAK)) // cell
    return [range(kept - kept // 2), range(total - kept // 2, total)]


def _unit(schedule: Schedule) -> int:
    """Returns how many units of time a column stands for."""
    exact = math.gcd(*(time for work in schedule.work for time in (work.start, work.end)))
    shortest = min(work.end - work.start for work in schedule.work)
    return max(exact, -(-shortest // _FINEST))


def _column(time: int, unit: int) -> int:
    """Returns the column whose start is nearest to a time."""
    return (2 * time + unit) // (2 * unit)


def _row(stage: Sequence[Work], unit: int, cell: int, shown: range) -> str:
    """Returns the columns `shown` of a stage."""
    cells = [".".ljust(cell)] * len(shown)
    for work in stage:
        start, end = _column(work.start, unit), _column(work.end, unit)
        mark = "<" if work.backward else " "
        for column in range(max(start, shown.start), min(end, shown.stop)):
            head = str(work.micro_batch) if column == start else ""
            cells[column - shown.start] = head.ljust(cell, mark)
    return "".join(cells)


def _title(schedule: Schedule) -> str:
    rounds = f", {schedule.num_rounds} rounds" if schedule.num_rounds > 1 else ""
    sizes = f"{schedule.num_stages} stages, {schedule.num_micro_batches} micro-batches{rounds}"
    return f"{schedule.name}: {sizes}"


def _legend(schedule: Schedule, unit: int, cell: int, shown: Sequence[range]) -> str:
    size = "1 unit of time" if unit == 1 else f"{unit} units of time"
    rounded = any(work.start % unit or work.end % unit for work in schedule.work)
    note = f"0 forward, 0< backward of micro-batch 0, . idle; {cell} characters are {size}"
    if rounded:
        note += ", to the nearest"
    if len(shown) > 1:
        note += f"; {_BREAK.strip()} leaves out {(shown[1].start - shown[0].stop) * unit}"
    return note


def _totals(schedule: Schedule) -> tuple[str, str]:
    whole = schedule.num_stages * schedule.makespan
    bubble = f"{schedule.bubble_fraction:.4f}, idle {schedule.idle} of {whole}"
    return (
        f"makespan {schedule.makespan}, bubble fraction {bubble}",
        f"live activations of each stage: {' '.join(map(str, schedule.live_activations()))}",
    )


def _means(stage: Sequence[Work], last: int, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean colour of a stage between neighbouring times, [W, 3].

    Args:
        stage: its work, in the order of time.
        last: number of the darkest micro-batch.
        edges: [W + 1], times.
    """
    idle = np.array(_IDLE, np.float64)
    shades = np.array([_FORWARD, _BACKWARD], np.float64)  # [forward or backward, first or last, 3]
    kinds = np.array([work.backward for work in stage], np.int64)
    shares = np.array([[work.micro_batch / last] for work in stage])
    colours = shades[kinds, 0] * (1 - shares) + shades[kinds, 1] * shares
    times = np.array([(work.start, work.end) for work in stage])
    # The integral over time of what a colour differs from idle: linear between starts and ends.
    ended = np.cumsum((colours - idle) * np.diff(times, axis=1), axis=0)
    begun = np.concatenate([np.zeros([1, 3]), ended[:-1]])
    integral = np.stack([begun, ended], axis=1).reshape(-1, 3)
    found = np.stack([np.interp(edges, times.ravel(), integral[:, i]) for i in range(3)], axis=1)
    return idle + np.diff(found, axis=0) / np.diff(edges)[:, None]
