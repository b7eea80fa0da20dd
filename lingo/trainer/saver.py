"""The saver decides when the state of a run is saved, and which checkpoints are kept.

with Saver(experiment, program, run, journal=journal, metadata=facts, progress=progress) as saver:
    if saver.is_due(step):
        saver.save()                             # waits for the previous save; a thread writes
    saver.check()                                # raises an error of that thread
    saver.wait()                                 # returns when the checkpoint is on the disk

While a run trains, STATUS names the last step that is on the disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from lingo.checkpoints import store
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.checkpoints.run_counters import RunCounters
from lingo.checkpoints.writer import Policy, Writer
from lingo.config.errors import LingoError, NumericFailure
from lingo.contract import Experiment
from lingo.learner.state import TrainState, named_tensors
from lingo.processes.processes import ALONE, LEADER, LostWorker, Processes
from lingo.runtimes.runtime import Program, ProgramError, explain_program_errors
from lingo.storage.files import StorageError
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard import rewind
from lingo.trainer.journal import Journal
from lingo.trainer.progress import Progress
from lingo.trainer.protected import is_regular, multiples, protected

_log = logging.getLogger(__name__)


class Saver:
    """Saves a run's state at the steps at which it is due.

    Attributes:
        multiples: a checkpoint is written after every multiple of each of these numbers of steps.
        saved: the step that is saved, or will be when `wait` returns.
    """

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        journal: Journal,
        metadata: Mapping[str, Any],
        progress: Progress,
        processes: Processes = ALONE,
    ) -> None:
        """Writes nothing yet: the current step is already saved.

        Args:
            experiment: what is trained.
            program: has the state.
            run: the run directory; locked by the leader.
            journal: has the run's counters.
            metadata: what each checkpoint records, beside the journal's metadata.
            progress: reports each checkpoint once it is on the disk.
            processes: they save together: all call the same methods, in the same order.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._journal, self._metadata, self._progress = journal, metadata, progress
        self._processes = processes
        p = experiment.p.checkpoint
        self.multiples = multiples(experiment)
        self.saved = journal.at.step
        policy = Policy(p.asynchronous, p.keep, p.keep_every_steps)
        self._writer = Writer(
            run.checkpoints, policy, on_commit=self._committed, processes=processes
        )
        self.check, self.wait = self._writer.check, self._writer.wait

    def __enter__(self) -> Saver:
        self._writer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, traceback)

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is written after a step: a regular one or the last."""
        return self.is_regular(step) or step >= self._experiment.p.max_steps

    def is_regular(self, step: int) -> bool:
        """Returns whether a checkpoint is written after a step even if it is not the last one."""
        return is_regular(self._experiment, step)

    def save(self) -> None:
        """Passes the state to the writer once it has written the previous one.

        Does nothing if this step is saved, or the writer already has it.

        Raises:
            StorageError: if this state or the previous one cannot be written.
            NumericFailure: if the previous state has a number that is not finite.
            ProgramError: as for `state`.
        """
        self.wait()  # at most one copy of the state is in memory
        at = self._journal.at
        if at.step == self.saved:
            return
        metadata, state = self._recorded(), self.state()
        self._run.check_there()
        tensors = named_tensors(self._experiment.learner, state)
        stay = self._protected(at) if self._processes.is_leader else []
        self._writer.save(at.step, tensors, metadata=metadata, protected=stay)
        self.saved = at.step

    def rescue(self, error: LingoError) -> None:
        """Saves the state after an error, and only logs an error of this save.

        Several processes save together only after an error that all see: NumericFailure. After
        any other error the leader saves alone, or, if the leader is lost, any process that is left.
        """
        alone = self._processes.count > 1 and not isinstance(error, NumericFailure)
        is_led = not (isinstance(error, LostWorker) and error.index == LEADER)
        if alone and is_led and not self._processes.is_leader:
            return
        try:
            self._journal.write()
            if alone:
                self._save_alone()
            else:
                self.save()
                self.wait()
        except LingoError as late:
            step = self._journal.at.step
            _log.error("what was done until step %d is not saved: %s", step, late)

    def give_up(self, *, after: int) -> None:
        """Deletes the checkpoints of steps after `after`, to which the run rewinds.

        Raises:
            StorageError: if one cannot be deleted.
        """
        self._run.set_status("running", after)  # or a start without checkpoints misses them
        if self._processes.is_leader:
            rewind.give_up(self._run.checkpoints, after=after)
        self.saved = after  # if rewinding fails now, `rescue` writes the step that it came from

    def state(self, *, alone: bool = False) -> TrainState:
        """Returns the state of the program, which must be at the journal's step.

        Args:
            alone: whether the other processes are lost.

        Raises:
            ProgramError: if an error left program and journal at different steps, or if a device
                is lost.
        """
        step = self._journal.at.step
        with explain_program_errors(f"reading the state after step {step}"):
            state = self._program.state(alone=alone)
        if state.step != step:
            raise ProgramError(f"step {state.step} was done, but not noted")
        return state

    def _save_alone(self) -> None:
        """Writes the state without the other processes, which are lost; deletes nothing.

        Raises:
            DirectoryLocked: if the leader still has the directory, or another process took over.
            StorageError, NumericFailure, ProgramError: as for `save`.
        """
        with contextlib.suppress(LingoError):  # a pending save needs the other processes, too
            self.wait()
        step, metadata, state = self._journal.at.step, self._recorded(), self.state(alone=True)
        own = self._run
        with contextlib.nullcontext(own) if own.enabled else own.take_over() as run:
            run.check_there()
            if (there := store.steps(run.checkpoints)) and step <= there[-1]:
                return
            tensors = named_tensors(self._experiment.learner, state)
            keep = len(there) + 1
            store.save(run.checkpoints, step=step, tensors=tensors, metadata=metadata, keep=keep)
            run.set_status("failed", step)
        self.saved = step
        self._progress.message(f"step {step}  saved")

    def _recorded(self) -> dict[str, Any]:
        """Returns the metadata of a checkpoint of the current step."""
        return {**self._metadata, **self._journal.metadata()}

    def _committed(self, step: int) -> None:
        self._run.set_status("running", step)
        self._progress.message(f"step {step}  saved")

    def _protected(self, at: RunCounters) -> list[int]:
        """Returns the steps whose checkpoints are kept once the one of `at.step` is written.

        Raises:
            StorageError: if the directory of checkpoints cannot be read.
        """
        try:
            steps = [*store.steps(self._run.checkpoints), at.step]
            stay = protected(self._experiment, self._run, at, steps)
        except NoUsableCheckpoint as error:
            raise StorageError(str(error)) from error
        return [*stay.best, *stay.back]
