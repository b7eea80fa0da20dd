"""Runs below a directory: what `lingo runs` shows of each, without TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lingo.config.params import ParamError
from lingo.study.metric import Metric
from lingo.trainer.directory.notes import NOTES, Notes, read_notes
from lingo.trainer.directory.run_directory import CONFIG, METRICS, RunDirectory

HEAD = ("run", "experiment", "state", "step", "metric", "value", "updated", "tags", "note")

_LOSSES = ("eval/loss", "loss/total")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class RunSummary(NamedTuple):
    """What is known of a run."""

    path: Path
    experiment: str  # its name, or file.py:function; "" if it was made in Python
    state: str  # as in STATUS; "killed" if its process is gone, "" if nothing is known
    step: int | None  # steps done
    metric: str  # metric by which the run is compared, "best NAME" or "last NAME"; "": none
    value: float | None  # best value of `evaluate.metric`, last value of other metrics
    updated: float  # seconds since 1970 of the last report
    notes: Notes


def find_runs(folder: Path) -> Iterator[Path]:
    """Yields the directories of runs at and below a folder, trials of sweeps and links included."""
    seen = set[str]()
    for path, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(path)) in seen:  # a link back
            folders.clear()
            continue
        seen.add(real)
        if CONFIG in names:
            yield Path(path)
            folders.clear()  # checkpoints and events
        else:
            folders.sort()


def summarize(path: Path, metric: str | None = None) -> RunSummary:
    """Returns the summary of a run, by a metric such as "heldout/loss", or its own."""
    run = RunDirectory(path)  # reading writes nothing
    config, rows, status = _read_json(run, CONFIG), _rows(run), run.status()
    chosen = _choose_metric(config, rows, metric)
    reading = chosen.read(rows) if chosen else None
    state = status.state if status else ""
    if state == "running" and run.is_abandoned:
        state = "killed"
    times = list[float]()
    for name in (METRICS, CONFIG):
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime)
    origin = config.get("experiment")
    return RunSummary(
        path,
        _name(origin) if isinstance(origin, Mapping) else "",
        state,
        status.step if status else None,
        f"{'best' if chosen.best_report else 'last'} {chosen.name}" if chosen else "",
        reading.value if reading else None,
        max(times, default=0.0),
        read_notes(run.read(NOTES)),
    )


def cells(one: RunSummary, *, now: float | None = None) -> list[str]:
    """Returns the row of a run under `HEAD`; with `now` the age, else the time of its report."""
    if now is None:
        updated = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.updated))
    else:
        updated = _age(now - one.updated)
    value = "" if one.value is None else f"{one.value:.6g}"
    step, tags = "" if one.step is None else str(one.step), ",".join(one.notes.tags)
    known = (str(one.path), one.experiment, one.state, step, one.metric, value, updated, tags)
    return [*known, one.notes.note]


def _name(origin: Mapping[str, Any]) -> str:
    """Returns the name of a registered experiment, or file.py:function; "" for neither."""
    file, function = origin.get("file") or "", origin.get("function") or ""
    return origin.get("name") or (f"{Path(file).name}:{function}" if file and function else "")


def _choose_metric(
    config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], metric: str | None
) -> Metric | None:
    params = config.get("params")
    evaluate = params.get("evaluate") if isinstance(params, Mapping) else None
    own = evaluate if isinstance(evaluate, Mapping) else {}
    name, goal = own.get("metric"), own.get("goal", "min")
    if metric is not None:
        return Metric(metric, goal, best_report=metric == name)
    if isinstance(name, str):
        return Metric(name, goal, best_report=True)
    tags = [tag for tag in _LOSSES if any(tag in row for row in rows)]
    return Metric(tags[0], "min") if tags else None


def _rows(run: RunDirectory) -> list[dict[str, Any]]:
    try:
        return list(run.metrics.read())
    except (OSError, ParamError):
        return []


def _read_json(run: RunDirectory, name: str) -> Mapping[str, Any]:
    try:
        read = json.loads(run.read(name) or "{}")
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, Mapping) else {}


def _age(seconds: float) -> str:
    """Returns an age in the largest unit that it fills, such as "3 h"."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"
