"""Uploads of a run whose directory is the local copy of a folder in a bucket."""

from __future__ import annotations

import time
import uuid

from lingo.checkpoints import store
from lingo.checkpoints.manifest import step_name, step_of
from lingo.contract import Experiment, ObservedRun, RunEvents
from lingo.processes.processes import Processes
from lingo.storage.bucket import table
from lingo.storage.bucket.mirror import Kept, Mirror, pull
from lingo.storage.bucket.parts import Parts
from lingo.storage.files import explain_write_errors, write_text
from lingo.storage.rows import State
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.progress import Progress

_SHARED = ".shared"


def prepare_copies(directory: RunDirectory, processes: Processes) -> None:
    """Sets `parts` of the directory, in all processes, unless all have the leader's local copy.

    Then each process without it has a copy of its own, with the leader's texts. Checkpoints that
    only the leader's disk has are deleted: the others could not read them.
    """
    if directory.address is None or processes.count == 1:
        return
    file, own = directory.path / _SHARED, uuid.uuid4().hex
    if processes.is_leader:
        write_text(file, own)
    token = processes.share("local copy", own if processes.is_leader else None)
    has_own = directory.read(_SHARED) != token
    if not processes.any(has_own):
        return
    if directory.mirror is not None:
        _publish(directory, directory.mirror)
    processes.barrier("uploaded")
    if has_own:
        with explain_write_errors(directory.path):
            directory.path.mkdir(parents=True, exist_ok=True)
        table.remove(directory.checkpoints)
        pull(directory.address, directory.path, checkpoints=0)
    processes.barrier("copied")
    directory.parts = Parts(directory.address)
    if directory.mirror is not None:
        directory.mirror.parts = directory.parts.table


def _publish(directory: RunDirectory, mirror: Mirror) -> None:
    """Uploads the leader's local copy, and deletes its checkpoints that the bucket lacks."""
    mirror.upload()
    mirror.wait()
    there, sent = table.local_checkpoints(directory.path), mirror.checkpoints
    if there and there[-1] not in sent:
        newest = step_of(sent[-1]) if sent else 0
        directory.set_status("running", newest or 0)  # else a start would miss the deleted ones
    for name in {*there} - {*sent}:
        table.remove(directory.checkpoints / name)


def steps_in_upload(directory: RunDirectory) -> list[int]:
    """Returns the steps whose checkpoints are being sent to the bucket."""
    names = directory.mirror.sending if directory.mirror is not None else ()
    return [step for name in names if (step := step_of(name)) is not None]


class Uploads(RunEvents):
    """Uploads the run at its start, and at checkpoints every `checkpoint.upload_minutes`.

    If the directory has `parts`, every checkpoint is uploaded, and training waits for it.
    The bytes are sent in a thread while training goes on. An error there is raised after the next
    step; so is the loss of the lease. The end of the run is uploaded when its lock is released.
    """

    def __init__(
        self, mirror: Mirror, experiment: Experiment, directory: RunDirectory, progress: Progress
    ) -> None:
        """Uploads nothing yet."""
        self._mirror, self._experiment = mirror, experiment
        self._directory, self._progress = directory, progress
        self._seconds = 60 * experiment.p.checkpoint.upload_minutes
        self._last_seconds = 0.0  # when the last upload began
        self._num_uploads = 0  # uploads that were looked at
        self._reported: str | None = None  # name of the last checkpoint whose upload is shown
        mirror.kept = self._kept_checkpoints()

    def on_start(self, run: ObservedRun, step: int) -> None:
        self._upload()

    def on_save(self, run: ObservedRun, step: int) -> None:
        if self._directory.parts is not None:  # else the checkpoint could not be read
            self._upload()
            self._mirror.wait()
            return
        is_due = time.monotonic() >= self._last_seconds + self._seconds
        if is_due and not self._mirror.is_busy:
            self._upload()

    def on_steps_end(self, run: ObservedRun, step: int) -> None:
        self._mirror.check()
        if self._mirror.uploads == self._num_uploads:
            return
        self._num_uploads = self._mirror.uploads
        newest = next(reversed(self._mirror.checkpoints), None)
        if newest is not None and newest != self._reported:
            self._reported = newest
            self._progress.message(f"{newest} is in {self._mirror.address}")

    def on_end(self, run: ObservedRun, state: State) -> None:
        self._mirror.kept = self._kept_checkpoints()  # for the upload when the lock is released

    def _upload(self) -> None:
        self._mirror.kept = self._kept_checkpoints()
        self._mirror.upload()
        self._last_seconds = time.monotonic()

    def _kept_checkpoints(self) -> Kept:
        """Returns the checkpoints that the bucket keeps.

        Another machine may have saved checkpoints that are in the bucket only; they count, too.
        """
        p = self._experiment.p.checkpoint
        names = self._mirror.checkpoints
        uploaded = {step for name in names if (step := step_of(name)) is not None}
        steps = {*store.steps(self._directory.checkpoints), *uploaded}
        pinned = set(best.best_steps(self._experiment, self._directory, uploaded=uploaded))
        if every := p.keep_every_steps:
            pinned |= {step for step in steps if step % every == 0}
        return Kept(p.keep, {step_name(step) for step in pinned})
