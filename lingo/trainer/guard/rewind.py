"""Where a run goes back to when something went wrong, and what it gives up for that.

To a checkpoint that is due at its step count, rather than one that a signal or an error asked for:
so a run that was stopped on the way goes back to the same one as a run that was not. Any other is
better than none: what was due may have been changed since, or be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.chosen import share_checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.processes.processes import ALONE, Processes


class Target(NamedTuple):
    """Where a run goes back to.

    Attributes:
        found: a sound checkpoint, or None if there is none.
        passed_over: damaged ones that would have come first.
    """

    found: Checkpoint | None
    passed_over: tuple[DamagedCheckpoint, ...] = ()


def candidates(
    steps: Sequence[int], *, at_most: int, is_regular: Callable[[int], bool]
) -> list[int]:
    """Returns the steps whose checkpoints a run may go back to, the best first.

    Args:
        steps: of all checkpoints, in order.
        at_most: steps that were done before the trouble.
        is_regular: whether a checkpoint is written after a step in any case.
    """
    before = [step for step in reversed(steps) if step <= at_most]
    return sorted(before, key=is_regular, reverse=True)  # stable: the latest of either first


def target(
    directory: Path,
    *,
    at_most: int,
    is_regular: Callable[[int], bool],
    processes: Processes = ALONE,
) -> Target:
    """Returns the best sound checkpoint to go back to.

    Args:
        directory: of the run's checkpoints.
        at_most: as for `candidates`.
        is_regular: as for `candidates`.
        processes: which go back; the leader looks, and knows of damaged ones.

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
    """Deletes the checkpoints of later steps, the latest first: they will be done otherwise.

    Raises:
        StorageError: if one cannot be deleted.
    """
    for step in reversed(store.steps(directory)):
        if step > after:
            store.delete(store.step_path(directory, step))
