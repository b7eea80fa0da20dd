"""Waiting for what a run that trains elsewhere leaves in its directory.

The directory is listed again and again: this works on every file system, and over a network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from lingo.checkpoints import store
from lingo.trainer.directory.run_directory import RunDirectory

POLL_SECONDS = 1.0

Sleep = Callable[[float], None]


def wait_for_run(run: RunDirectory, *, timeout_seconds: float, sleep: Sleep = time.sleep) -> None:
    """Waits until a run has begun in a directory, at most as long as that."""
    for _ in _ticks(lambda: None, timeout_seconds, sleep):
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
    """Yields the step of every checkpoint, as it appears, until the run is over.

    A run that goes back writes some once more: these come again.

    Args:
        run: the directory.
        done: steps that are not wanted.
        newest: where several wait, yields the latest and forgets the others.
        timeout_seconds: ends after so long without a new checkpoint or report.
        sleep: waits some seconds.
    """
    seen = set(done)
    for _ in _ticks(lambda: _news(run, seen), timeout_seconds, sleep):
        is_over = _is_over(run)  # asked first: the last checkpoint is there before the run is over
        if there := store.steps(run.checkpoints):  # where the run went back, later ones come again
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
    """Returns a value that changes when something happens."""
    changed = run.metrics.path.stat().st_mtime_ns if run.metrics.path.exists() else 0
    return changed, run.status(), len(seen)


def _ticks(news: Callable[[], Any], timeout_seconds: float, sleep: Sleep) -> Iterator[None]:
    """Yields at once, and again every poll, until there has been no news for so long."""
    last, quiet_seconds = news(), 0.0
    while True:
        yield
        if (now := news()) != last:
            last, quiet_seconds = now, 0.0
        if quiet_seconds >= timeout_seconds:
            return
        sleep(POLL_SECONDS)
        quiet_seconds += POLL_SECONDS
