"""The checkpoints that the leader of several processes chooses, in all of them.

What a directory holds may change while processes look: who looks for himself may find another.
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
    """Returns the checkpoint that the leader finds; None if it returns that.

    Args:
        processes: all call this.
        directory: of all checkpoints.
        find: is called in the leader, and makes sure that the checkpoint is sound.

    Raises:
        DamagedCheckpoint: if the checkpoint is not the same for all processes.
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
    """Yields the checkpoints that the leader finds, one after the other; arguments as `chosen`."""
    remaining = iter(found)
    while (
        one := share_checkpoint(processes, directory, lambda: next(remaining, None))
    ) is not None:
        yield one
