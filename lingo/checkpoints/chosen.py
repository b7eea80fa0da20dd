"""Shares the leader's choice of a checkpoint with all processes.

The directory may change while processes read it, so each might choose another checkpoint by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar, cast

from lingo.checkpoints.checkpoint import Checkpoint, open_checkpoint
from lingo.checkpoints.store import step_path
from lingo.processes.processes import Processes

_Found = TypeVar("_Found", Checkpoint, Checkpoint | None)

_SHARED = "checkpoint"


def share_checkpoint(processes: Processes, directory: Path, find: Callable[[], _Found]) -> _Found:
    """Returns, in all processes, the checkpoint that the leader finds, or None if it finds none.

    Args:
        processes: all processes must call this.
        directory: of all checkpoints.
        find: called in the leader only; verifies the checkpoint that it returns.

    Raises:
        DamagedCheckpoint: if another process cannot open the checkpoint, or reads another one.
    """
    if processes.is_leader:
        found = find()
        processes.share(_SHARED, "" if found is None else str(found.step))
        return found
    step = processes.share(_SHARED, None)
    found = open_checkpoint(step_path(directory, int(step))) if step else None
    return cast(_Found, found)


def share_checkpoints(
    processes: Processes, directory: Path, found: Iterable[Checkpoint]
) -> Iterator[Checkpoint]:
    """Yields the leader's checkpoints in all processes; arguments as for `share_checkpoint`."""
    remaining = iter(found)
    while (
        one := share_checkpoint(processes, directory, lambda: next(remaining, None))
    ) is not None:
        yield one
