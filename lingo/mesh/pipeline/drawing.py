"""Draws a schedule as text and as a picture: a row for each stage, time to the right.

    stage 0  0 1 2 . . . . 2<<<1<<<0<<<
    stage 1  . 0 1 2 . . 2<<<1<<<0<<<. .

Times must be whole numbers. Axes of pictures: K stages, downwards; T units of time; H height,
W width, 3 for red, green, blue.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lingo.mesh.pipeline.schedule import Schedule, Work

_LINE = 100  # characters
_CUT = " // "  # replaces the middle of a schedule that is wider than a line

_WIDTH, _HEIGHT = 1024, 512  # pixels of a picture at most
_MAX_CELL = 32  # pixels
_IDLE = np.array([208.0, 208, 208])
# [forward or backward, first or last micro-batch, 3]
_SHADES = np.array([[(173.0, 208, 234), (8, 48, 107)], [(253, 208, 162), (140, 45, 4)]])


def text(schedule: Schedule) -> str:
    """Returns a drawing in characters, a cell for each unit of time, with a legend and totals.

    If a schedule is wider than a line, only its beginning and its end are drawn.
    """
    total, cell = int(schedule.makespan), len(str(schedule.num_micro_batches - 1)) + 1
    digits = len(str(schedule.num_stages - 1))
    head = tail = max((_LINE - digits - len("stage   ") - len(_CUT)) // cell, 2) // 2
    is_cut = total * cell > _LINE - digits - len("stage   ")
    lines: list[str] = []
    for i, works in enumerate(schedule.stages):
        cells = _cells(works, total, cell)
        row = f"{''.join(cells[:head])}{_CUT}{''.join(cells[-tail:])}" if is_cut else "".join(cells)
        lines.append(f"stage {i:>{digits}}  {row}".rstrip())
    legend = (
        "0 forward, 0< backward of micro-batch 0, . idle;"
        f" {cell} characters are 1 unit of time"
        f"{f'; {_CUT.strip()} leaves out {total - head - tail}' if is_cut else ''}"
    )
    totals = (
        f"makespan {total}, bubble fraction {schedule.bubble_fraction:.4f},"
        f" idle {int(schedule.idle)} of {schedule.num_stages * total}"
    )
    return "\n".join([*lines, textwrap.fill(legend, _LINE), totals])


def _cells(works: Sequence[Work], total: int, width: int) -> list[str]:
    """Returns the characters of each unit of time of a stage."""
    cells = [".".ljust(width)] * total
    for work in works:
        mark = "<" if work.step.backward else " "
        for time in range(int(work.start), int(work.end)):
            number = str(work.step.micro_batch) if time == work.start else ""
            cells[time] = number.ljust(width, mark)
    return cells


def pixels(schedule: Schedule) -> NDArray[np.uint8]:
    """Returns a picture of a schedule, uint8 [H, W, 3] with H <= 512 and W <= 1024.

    Forward steps are blue, backward steps orange, later micro-batches darker, idle time grey. If
    time or stages do not fit, a pixel has the mean colour of the cells that it covers.
    """
    colours = np.tile(_IDLE, [schedule.num_stages, int(schedule.makespan), 1])
    last = max(schedule.num_micro_batches - 1, 1)
    for work in itertools.chain(*schedule.stages):
        step, share = work.step, work.step.micro_batch / last
        first_shade, last_shade = _SHADES[int(step.backward)]
        shade = first_shade * (1 - share) + last_shade * share
        colours[step.stage, int(work.start) : int(work.end)] = shade
    return _fit(_fit(colours, 0, _HEIGHT), 1, _WIDTH).round().astype(np.uint8)


def _fit(colours: NDArray[np.float64], axis: int, most: int) -> NDArray[np.float64]:
    """Repeats or averages the cells, [K, T, 3], along an axis; `most` limits its size."""
    size = int(colours.shape[axis])
    if size <= most:
        return colours.repeat(min(most // size, _MAX_CELL), axis)
    starts: NDArray[np.int64] = np.arange(0, size, -(-size // most))
    counts: NDArray[np.int64] = np.diff(starts, append=size)
    sums = np.add.reduceat(colours, starts, axis)
    return sums / np.expand_dims(counts, [i for i in range(3) if i != axis])
