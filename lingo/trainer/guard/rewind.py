"""The target of a rewind, and the deletion of later checkpoints.

The target is a checkpoint that was due at its step count, rather than one that a signal or an
error caused: so a run that was interrupted rewinds to the same one as a run that was not. Any other
checkpoint is better than none: intervals may have been changed since, or the due one be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.checkpoints.store import share_checkpoint
from lingo.processes.processes import ALONE, Processes


class Target(NamedTuple):
    """The target of a rewind.

    Attributes:
        found: a sound checkpoint, or None if there is none.
        passed_over: damaged checkpoints that would have been preferred.
    """

    found: Checkpoint | None
    passed_over: tuple[DamagedCheckpoint, ...] = ()


def candidates(
    steps: Sequence[int], *, at_most: int, is_regular: Callable[[int], bool]
) -> list[int]:
    """Returns the steps whose checkpoints a run may rewind to, the preferred one first.

    Args:
        steps: the steps of all checkpoints, in order.
        at_most: the number of steps done before the anomaly.
        is_regular: whether a checkpoint is written after a step even if it is not the last one.
    """
    before = [step for step in reversed(steps) if step <= at_most]
    return sorted(before, key=is_regular, reverse=True)  # stable: the latest of each kind first


def target(
    directory: Path,
    *,
    at_most: int,
    is_regular: Callable[[int], bool],
    processes: Processes = ALONE,
) -> Target:
    """Returns the preferred sound checkpoint to rewind to.

    Args:
        directory: the directory of the run's checkpoints.
        at_most: as for `candidates`.
        is_regular: as for `candidates`.
        processes: they rewind together; only the leader reads, and gets the damaged ones.

    Raises:
        NoUsableCheckpoint: if one cannot be read now.
    """
    damaged: list[DamagedCheckpoint] = []

    def best() -> Checkpoint | None:
        for step in candidates(store.steps(directory), at_most=at_most, is_regular=is_regular):
            try:
                return open_sound(store.step_path(directory, step))
            except DamagedCheckpoint as error:
                damaged.append(error)
        return None

    found = share_checkpoint(processes, directory, best)
    return Target(found, tuple(damaged))


def give_up(directory: Path, *, after: int) -> None:
    """Deletes the checkpoints of steps after `after`, the latest first.

    Raises:
        StorageError: if one cannot be deleted.
    """
    for step in reversed(store.steps(directory)):
        if step > after:
            store.delete(store.step_path(directory, step))
