"""The checkpoints of a run: a directory per step, committed atomically and never written again.

A checkpoint is written under a temporary name in the same directory, manifest last, and then
renamed. There is no pointer file: the latest checkpoint is the checkpoint with the highest step
that verifies. `Retention` says which checkpoints are kept.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from lingo.checkpoints.checkpoint import Checkpoint, open_checkpoint, open_sound
from lingo.checkpoints.commit import commit
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.manifest import MANIFEST, step_name, step_of
from lingo.processes.processes import ALONE, Processes
from lingo.storage.bucket.parts import Parts, refresh
from lingo.storage.files import StorageError, explain_write_errors, sync

_log = logging.getLogger(__name__)

_SHARED = "checkpoint"

_Found = TypeVar("_Found", Checkpoint, Checkpoint | None)


class Retention(NamedTuple):
    """Rules for keeping the checkpoints of a run, one per field; any of them keeps a checkpoint.

    `latest=None` keeps all checkpoints.
    """

    latest: int | None = None  # keeps this many of the highest steps
    every: int | None = None  # keeps multiples of this step
    best: Collection[int] = ()  # keeps these steps, the best by `evaluate.metric`
    rewind: Collection[int] = ()  # keeps these steps, to which the run might rewind
    upload: Collection[int] = ()  # keeps these steps, which are being sent to a bucket

    def reasons(self, steps: Sequence[int]) -> dict[int, list[str]]:
        """Returns the steps that are kept, lowest first, each with the names of its rules."""
        rules: dict[str, Collection[int]] = {
            "latest": steps if self.latest is None else sorted(steps)[-self.latest :],
            "every": [step for step in steps if self.every and step % self.every == 0],
            "best": self.best,
            "rewind": self.rewind,
            "upload": self.upload,
        }
        names = {step: [rule for rule, kept in rules.items() if step in kept] for step in steps}
        return {step: names[step] for step in sorted(names) if names[step]}


KEEP_ALL = Retention()


# ---- finding -----------------------------------------------------------------------------------


def steps(directory: Path) -> list[int]:
    """Returns the steps that have a checkpoint in a directory, lowest first, damaged or not.

    Every entry with the name of a step counts; a file or a link counts as a damaged checkpoint.
    """
    return sorted(step for name in _names(directory) if (step := step_of(name)) is not None)


def quarantined_names(directory: Path) -> list[str]:
    """Returns the names of damaged checkpoints that were renamed, in order."""
    return sorted(name for name in _names(directory) if _is_quarantined(name))


def step_path(directory: Path, step: int) -> Path:
    """Returns the path of a step's checkpoint."""
    return directory / step_name(step)


def latest(directory: Path, *, unreadable: Sequence[DamagedCheckpoint] = ()) -> Checkpoint | None:
    """Returns the checkpoint of the highest step that verifies, or None if there never was any.

    No file is changed; `later_errors` of the result lists damaged checkpoints of higher steps.
    `unreadable` has the errors of checkpoints that verify but hold no tensors; these count as
    damaged. Raises NoUsableCheckpoint if all checkpoints are damaged, or if a checkpoint cannot be
    read now and no checkpoint of a higher step verifies.
    """
    known = {error.path: error for error in unreadable}
    damaged: list[DamagedCheckpoint] = []
    for step in reversed(steps(directory)):
        path = step_path(directory, step)
        if path in known:
            damaged.append(known[path])
            continue
        try:
            checkpoint = open_sound(path)
        except DeletedCheckpoint:  # the process that trains has deleted it
            return latest(directory, unreadable=unreadable)
        except DamagedCheckpoint as error:
            damaged.append(error)
        else:
            return dataclasses.replace(checkpoint, later_errors=tuple(damaged))
    quarantined = quarantined_names(directory)
    if damaged or quarantined:
        reasons = [
            *map(str, damaged),
            *(f"{directory / name} was damaged before" for name in quarantined),
        ]
        lines = "\n  ".join([f"no checkpoint in {directory} can be used:", *reasons])
        raise NoUsableCheckpoint(f"{lines}\nMove them away to start from step 0.")
    return None


def find(
    directory: Path, step: int | None, *, of: Path, unreadable: Sequence[DamagedCheckpoint] = ()
) -> Checkpoint:
    """Returns the verified checkpoint of `step`; None: the latest checkpoint.

    Messages name the run's path, `of`. `unreadable` is as for `latest`. Raises DamagedCheckpoint if
    the step's checkpoint is damaged, NoUsableCheckpoint if no checkpoint can be used.
    """
    if step is None:
        checkpoint = latest(directory, unreadable=unreadable)
        if checkpoint is None:
            raise NoUsableCheckpoint(f"{of} has no checkpoint yet.")
        return checkpoint
    try:
        return open_sound(find_path(directory, step, of=of))
    except DeletedCheckpoint:
        return find(directory, step, of=of)  # its error lists the steps that exist now


def find_path(directory: Path, step: int, *, of: Path) -> Path:
    """Returns the path of a step's checkpoint, damaged or not; arguments and errors as `find`."""
    existing = steps(directory)
    if step not in existing:
        text = ", ".join(map(str, existing)) or "none"
        raise NoUsableCheckpoint(f"{of} has no checkpoint of step {step}; it has {text}.")
    return step_path(directory, step)


def share_checkpoint(processes: Processes, directory: Path, find: Callable[[], _Found]) -> _Found:
    """Returns, in all processes, the checkpoint that the leader finds, or None if it finds none.

    The directory may change while processes read it, so separate searches might differ. All
    processes must call this; only the leader calls `find`, which verifies the checkpoint. A process
    whose local copy of the run lacks the checkpoint reads its manifest from the bucket.
    """
    if processes.is_leader:
        checkpoint = find()
        processes.share(_SHARED, "" if checkpoint is None else str(checkpoint.step))
        return checkpoint
    step = processes.share(_SHARED, None)
    if not step:
        return cast(_Found, None)
    path = step_path(directory, int(step))
    if not (path / MANIFEST).exists():
        refresh(path)
    return cast(_Found, open_checkpoint(path))


def share_checkpoints(
    processes: Processes, directory: Path, checkpoints: Iterable[Checkpoint]
) -> Iterator[Checkpoint]:
    """Yields, in all processes, the checkpoints that the leader iterates over."""
    remaining = iter(checkpoints)
    while checkpoint := share_checkpoint(processes, directory, lambda: next(remaining, None)):
        yield checkpoint


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NoUsableCheckpoint(f"{directory} cannot be read: {error.strerror}.") from error


def _is_quarantined(name: str) -> bool:
    step, _, number = name.partition(".corrupt-")
    return number.isdecimal() and step_of(step) is not None


# ---- writing -----------------------------------------------------------------------------------


def save(
    directory: Path,
    *,
    step: int,
    tensors: Iterable[tuple[str, Any]],
    metadata: Mapping[str, Any],
    retention: Retention = KEEP_ALL,
    processes: Processes = ALONE,
    parts: Parts | None = None,
) -> Path:
    """Commits a checkpoint, deletes checkpoints that are not kept, and returns the new path.

    Raises the errors of `commit`.

    Args:
        directory: parent of all checkpoints; created if it is missing, but not its own parent.
        tensors: as for `commit`, each of a single layer; consumed lazily and written in groups.
        retention: the rules by which checkpoints are kept. Only the leader uses them.
        processes: all processes that save together; the leader deletes.
        parts: as for `commit`; None: the processes share a file system.
    """
    target = step_path(directory, step)
    commit(target, step=step, tensors=tensors, metadata=metadata, processes=processes, parts=parts)
    if not processes.is_leader:
        return target
    try:
        existing = steps(directory)
    except NoUsableCheckpoint as error:
        _log.warning("old checkpoints stay: %s", error)
        return target
    for old in sorted(set(existing) - retention.reasons(existing).keys()):
        try:
            delete(step_path(directory, old))
        except StorageError as error:
            _log.warning("an old checkpoint stays: %s", error)
    return target


def delete(path: Path) -> None:
    """Renames and then deletes a checkpoint, so that no reader sees an incomplete checkpoint."""
    trash = path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}")
    with explain_write_errors(path):
        path.rename(trash)
        _remove(trash)


def quarantine(path: Path) -> Path:
    """Renames a damaged checkpoint to `<name>.corrupt-<n>`, so that its step can be done again."""
    number = 1
    while os.path.lexists(target := path.with_name(f"{path.name}.corrupt-{number}")):
        number += 1
    with explain_write_errors(path):
        path.rename(target)
        sync(path.parent)
    return target


def quarantine_all(damaged: Iterable[DamagedCheckpoint], *, report: Callable[[str], None]) -> None:
    """Renames damaged checkpoints (`quarantine`), and reports each with a line."""
    for error in damaged:
        report(f"{error}; renamed to {quarantine(error.path).name}")


def clear_leftovers(directory: Path) -> None:
    """Deletes temporary files of a killed process; the caller holds the run directory's lock."""
    for name in _names(directory):
        if name.startswith((".tmp-", ".trash-")):
            with explain_write_errors(directory / name):
                _remove(directory / name)


def _remove(path: Path) -> None:
    """Removes a file, a directory or a link, never the target of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
