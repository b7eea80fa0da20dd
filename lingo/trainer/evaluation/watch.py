"""Evaluates a run that another process trains (`lingo eval`): finds checkpoints, writes results.

eval_<name>/metrics.jsonl       one flat object per evaluation: TensorBoard tags, `step` and `time`
eval_<name>/events.out...       the same numbers, next to the event files of the training

Polling the directory works on every file system, and over a network.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lingo.checkpoints import store
from lingo.metrics.media import Media
from lingo.storage.bucket import results
from lingo.storage.rows import Row, Rows, format_rows
from lingo.trainer.directory.run_directory import METRICS, RunDirectory
from lingo.trainer.summaries.events import Events, media_summary

POLL_SECONDS = 1.0

Sleep = Callable[[float], None]


def wait_for_run(run: RunDirectory, *, timeout_seconds: float, sleep: Sleep = time.sleep) -> None:
    """Waits until a run has begun in a directory, for at most `timeout_seconds`."""
    for _ in _ticks(lambda: None, timeout_seconds, sleep):
        run.refresh()
        if run.exists:
            return


def new_checkpoints(
    run: RunDirectory,
    *,
    done: Collection[int] = (),
    newest: bool = False,
    timeout_seconds: float,
    sleep: Sleep = time.sleep,
) -> Iterator[int]:
    """Yields the step of every checkpoint when it appears, until the run is over.

    A run that rewinds writes some checkpoints again, whose steps are then yielded again. Steps in
    `done` are left out. With `newest`, only the latest of several new checkpoints is yielded. The
    iteration also ends after `timeout_seconds` without a new checkpoint or report.
    """
    seen = set(done)
    for _ in _ticks(lambda: _news(run, seen), timeout_seconds, sleep):
        run.refresh()
        is_over = _is_over(run)  # read first: the last checkpoint is there before the run is over
        if there := store.steps(run.checkpoints):  # after a rewind, later steps come again
            seen.difference_update([s for s in seen if s > there[-1]])
        while waiting := [s for s in store.steps(run.checkpoints) if s not in seen]:
            step = waiting[-1 if newest else 0]
            seen.update(waiting if newest else [step])
            yield step
        if is_over:
            return


def _is_over(run: RunDirectory) -> bool:
    status = run.status()
    return status is not None and status.is_over


def _news(run: RunDirectory, seen: set[int]) -> Any:
    """Returns a value that changes if there is a new report or status, or `seen` grows."""
    changed = run.metrics.path.stat().st_mtime_ns if run.metrics.path.exists() else 0
    return changed, run.status(), len(seen)


def _ticks(news: Callable[[], Any], timeout_seconds: float, sleep: Sleep) -> Iterator[None]:
    """Yields at once and then at every poll, until `timeout_seconds` pass without news."""
    last, quiet_seconds = news(), 0.0
    while True:
        yield
        if (now := news()) != last:
            last, quiet_seconds = now, 0.0
        if quiet_seconds >= timeout_seconds:
            return
        sleep(POLL_SECONDS)
        quiet_seconds += POLL_SECONDS


def write_evaluations(
    run: RunDirectory,
    step: int,
    evaluations: Mapping[str, Mapping[str, float]],
    summaries: Mapping[str, Mapping[str, Media | float]] = MappingProxyType({}),
) -> None:
    """Writes a checkpoint's evaluations, input -> {tag: value}; a failure to write is a warning.

    `summaries`, input -> {tag: summary}, are for TensorBoard only. No lock is needed, because the
    training process writes other files. The results of a run in a bucket are sent there, too.
    """
    events, new = Events(run.path), dict[Path, Row]()
    for name, tags in evaluations.items():
        folder = run.evaluation(name)
        events.add_scalars(folder, step, tags)
        if shown := summaries.get(name):
            events.add(folder, step, media_summary(shown))
        row = {"step": int(step), "time": time.time(), **tags}
        rows = Rows(folder / METRICS, root=run.path)
        with events.warn_on_failure(rows.path):
            rows.append(row)
        new[rows.path] = row
    if run.address is not None:
        with events.warn_on_failure(run.path):
            results.send(run.address, _new_files(run, events, new))


def _new_files(run: RunDirectory, events: Events, rows: Mapping[Path, Row]) -> dict[str, bytes]:
    """Returns new rows and their event files as bytes, by path in the run."""
    new: dict[Path, bytes] = {}
    for path, row in rows.items():
        file = events.file(path.parent)
        with contextlib.suppress(OSError):  # a warning has told why it could not be written
            new[file] = file.read_bytes()
        new[path] = format_rows([row]).encode()
    return {str(path.relative_to(run.path)): data for path, data in new.items()}


def evaluated_steps(run: RunDirectory, names: Iterable[str]) -> set[int]:
    """Returns the steps at which `lingo eval` has evaluated all inputs with these names."""
    found = [{row["step"] for row in Rows(run.evaluation(name) / METRICS).read()} for name in names]
    return set.intersection(*found) if found else set()
