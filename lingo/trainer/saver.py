"""The saver decides when the state of a run is saved, and which checkpoints are kept.

with Saver(run, metadata) as saver:
    if saver.is_due(step):
        saver.save()                             # waits for the previous save; a thread writes
    saver.check()                                # raises an error of that thread
    saver.wait()                                 # returns when the checkpoint is on the disk

While a run trains, STATUS names the last step that is on the disk. The rewinder returns the run to
an earlier checkpoint, from which it continues.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.run_counters import RunCounters, read_counters
from lingo.checkpoints.store import KEEP_ALL, Retention, share_checkpoint
from lingo.checkpoints.writer import Writer
from lingo.config.base.errors import LingoError, NumericFailure
from lingo.contract import Experiment, RunEvents
from lingo.learner.state import TrainState, load_arrays, named_tensors
from lingo.processes.processes import LEADER, LostWorker
from lingo.runtimes.program import LostState, ProgramError, explain_program_errors
from lingo.storage.files import StorageError
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.guard.guard import Anomaly, find_first_anomaly
from lingo.trainer.live_run import LiveRun
from lingo.trainer.uploads import steps_in_upload

_log = logging.getLogger(__name__)


class Saver:
    """Saves a run's state at the steps at which it is due.

    Attributes:
        saved: the step of the last checkpoint, which is on the disk when `wait` returns.
    """

    def __init__(self, run: LiveRun, metadata: Mapping[str, Any]) -> None:
        """Writes nothing yet: the current step is already saved. All processes save together."""
        self._run, self._metadata = run, metadata
        self.saved = run.recorder.counters.step
        self._writer = Writer(
            run.directory.checkpoints,
            asynchronous=run.experiment.p.checkpoint.asynchronous,
            on_commit=self._show_saved,
            processes=run.processes,
            parts=run.directory.parts,
        )
        # Saved steps whose `on_save` the observers have not received yet.
        self._committed = queue.SimpleQueue[int]()

    def __enter__(self) -> Saver:
        self._writer.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._writer.__exit__(*exception)

    def check(self) -> None:
        """Raises an error of the writer's thread; reports saved steps to observers (`on_save`)."""
        self._writer.check()
        while not self._committed.empty():
            self._run.observers.tell(RunEvents.on_save, self._committed.get())

    def wait(self) -> None:
        """Waits until every checkpoint passed to the writer is on the disk; then calls `check`."""
        self._writer.wait()
        self.check()

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after a step: at an interval, or after the last."""
        experiment = self._run.experiment
        return is_regular(experiment, step) or step >= experiment.length.steps

    def save(self) -> None:
        """Passes the state to the writer after waiting for the previous checkpoint.

        Does nothing if this step is saved, or if the writer already has its state.

        Raises StorageError if this or the previous state cannot be written, NumericFailure if the
        previous state has a number that is not finite.
        """
        self.wait()  # at most one copy of the state is in memory
        run, step = self._run, self._run.recorder.counters.step
        if step == self.saved:
            return
        metadata, state = self._metadata_now(), self.state()
        run.directory.check_there()
        run.recorder.sync()  # a checkpoint on the disk has all rows before it
        tensors = named_tensors(run.experiment.learner, state)
        retention = self._keeping() if run.processes.is_leader else KEEP_ALL
        self._writer.save(step, tensors, metadata=metadata, retention=retention)
        self.saved = step

    def rescue(self, error: LingoError) -> None:
        """Saves the state after an error; a second error during the save is only logged.

        Several processes save together only after a NumericFailure, which all of them see. After
        any other error the leader saves alone or, if the leader is lost, a remaining process.
        """
        processes, recorder = self._run.processes, self._run.recorder
        alone = processes.count > 1 and not isinstance(error, NumericFailure)
        is_led = not (isinstance(error, LostWorker) and error.index == LEADER)
        if alone and is_led and not processes.is_leader:
            return
        try:
            self._run.directory.check_there()
            recorder.write()
            if alone:
                self._save_alone()
            else:
                self.save()
                self.wait()
        except LingoError as late:
            step = recorder.counters.step
            _log.error("the training up to step %d is not saved: %s", step, late)

    def delete_later(self, *, after: int) -> None:
        """Deletes the checkpoints of steps after `after`, the latest first, for a rewind."""
        directory = self._run.directory
        directory.set_status("running", after)  # else a start would miss the deleted checkpoints
        if self._run.processes.is_leader or directory.parts is not None:
            for step in reversed(store.steps(directory.checkpoints)):
                if step > after:
                    store.delete(store.step_path(directory.checkpoints, step))
        self.saved = after  # if the rewind fails from here on, `rescue` saves the present step

    def state(self, *, alone: bool = False) -> TrainState:
        """Returns the program's state; with `alone`, without the help of other processes.

        Raises ProgramError if an error left program and recorder at different steps, or if a
        device is lost.
        """
        step = self._run.recorder.counters.step
        with explain_program_errors(f"reading the state after step {step}"):
            state = self._run.program.state(alone=alone)
        if state.step != step:
            raise ProgramError(f"step {state.step} was done, but not recorded")
        return state

    def _save_alone(self) -> None:
        """Writes the state without the other processes, which are lost; deletes nothing."""
        with contextlib.suppress(LingoError):  # a pending save needs the other processes, too
            self.wait()
        metadata, state = self._metadata_now(), self.state(alone=True)
        step, own = self._run.recorder.counters.step, self._run.directory
        with contextlib.nullcontext(own) if own.enabled else own.take_over() as directory:
            directory.check_there()
            there = store.steps(directory.checkpoints)
            if there and step <= there[-1]:
                return
            store.save(
                directory.checkpoints,
                step=step,
                tensors=named_tensors(self._run.experiment.learner, state),
                metadata=metadata,
            )
            directory.set_status("failed", step)
        self.saved = step
        self._run.progress.message(f"step {step}  saved")

    def _metadata_now(self) -> dict[str, Any]:
        return {**self._metadata, **self._run.recorder.metadata()}

    def _show_saved(self, step: int) -> None:
        """Reports a saved checkpoint; the writer calls it in its own thread."""
        self._run.directory.set_status("running", step)
        self._run.progress.message(f"step {step}  saved")
        self._committed.put(step)

    def _keeping(self) -> Retention:
        """Returns which checkpoints are kept once the current checkpoint is written."""
        run, counters = self._run, self._run.recorder.counters
        try:
            steps = [*store.steps(run.directory.checkpoints), counters.step]
            rules = retention(run.experiment, run.directory, counters, steps)
            return rules._replace(upload=steps_in_upload(run.directory))
        except NoUsableCheckpoint as error:
            raise StorageError(str(error)) from error


# ---- which checkpoints are due, and which are kept -----------------------------------------------


def intervals(experiment: Experiment) -> list[int]:
    """Returns the intervals, in steps, at which checkpoints are written."""
    p = experiment.p.checkpoint
    return [n for n in (p.every_steps, p.keep_every_steps) if n is not None]


def is_regular(experiment: Experiment, step: int) -> bool:
    """Returns whether a step is at an interval of checkpoints, or of evaluations to compare."""
    compared = experiment.p.evaluate.metric is not None and experiment.evaluations.is_due(step)
    return compared or any(step % n == 0 for n in intervals(experiment))


def retention(
    experiment: Experiment, directory: RunDirectory, counters: RunCounters, steps: Sequence[int]
) -> Retention:
    """Returns which of a run's checkpoints are kept; `steps` are their steps in order.

    The target of a possible rewind is kept even before an anomaly occurs, because signals and
    errors may add many checkpoints at other steps until then.
    """
    p = experiment.p
    anomaly = find_first_anomaly(counters, p.guard, max_steps=experiment.length.steps)
    sound = anomaly.sound_step if anomaly else counters.step - counters.health.num_anomalous
    return Retention(
        latest=p.checkpoint.keep,
        every=p.checkpoint.keep_every_steps,
        best=best.best_steps(experiment, directory),
        rewind=rewind_targets(experiment, steps, at_most=sound)[:1],
    )


def rewind_targets(experiment: Experiment, steps: Sequence[int], *, at_most: int) -> list[int]:
    """Returns the steps whose checkpoints a run may rewind to, the preferred one first.

    Checkpoints at regular intervals precede checkpoints that a signal or an error caused. So an
    interrupted run rewinds to the same checkpoint as an uninterrupted run. The irregular
    checkpoints come last: intervals may have changed, or all regular checkpoints may be damaged.
    """
    before = [step for step in reversed(steps) if step <= at_most]
    return sorted(before, key=lambda step: not is_regular(experiment, step))


# ---- rewinding -----------------------------------------------------------------------------------


class Rewinder:
    """Rewinds a run: after anomalies as often as its guard allows, and after lost devices.

    find an undamaged checkpoint    # from before an anomaly; the latest if devices are lost
    read its state                  # before anything is deleted
    delete the checkpoints and reports of later steps
    load the state
    skip the batches since then     # only after an anomaly, to train on other data
    """

    def __init__(
        self, run: LiveRun, saver: Saver, restore: Callable[[Checkpoint | None], TrainState]
    ) -> None:
        """Does nothing yet. `restore` returns a checkpoint's state, or for None the first state."""
        self._run, self._saver, self._restore = run, saver, restore

    def rewind_or_stop(self, anomaly: Anomaly) -> None:
        """Rewinds to a checkpoint from before an anomaly.

        Raises NumericFailure if the guard stops the run, or if no undamaged checkpoint exists.
        """
        run, recorder = self._run, self._run.recorder
        before, most = anomaly.sound_step, run.experiment.p.guard.max_rewinds
        if anomaly.action == "stop":
            raise recorder.failure(anomaly)
        if recorder.counters.rewinds >= most:
            raise recorder.failure(anomaly, but=f"guard.max_rewinds={most}")
        self._saver.wait()
        damaged: list[DamagedCheckpoint] = []
        directory = run.directory.checkpoints
        target = share_checkpoint(run.processes, directory, lambda: self._find(before, damaged))
        if target is None and (damaged or before >= min(intervals(run.experiment))):
            but = "; ".join(["there is no sound checkpoint from before", *map(str, damaged)])
            raise recorder.failure(anomaly, but=but)
        store.quarantine_all(damaged, report=run.progress.message)
        self._rewind(target, anomaly)

    def _find(self, before: int, damaged: list[DamagedCheckpoint]) -> Checkpoint | None:
        """Returns the preferred undamaged checkpoint, or None; adds errors to `damaged`."""
        directory = self._run.directory.checkpoints
        steps = store.steps(directory)
        for step in rewind_targets(self._run.experiment, steps, at_most=before):
            try:
                return open_sound(store.step_path(directory, step))
            except DamagedCheckpoint as error:
                damaged.append(error)
        return None

    def _rewind(self, target: Checkpoint | None, anomaly: Anomaly) -> None:
        """Goes back to a checkpoint, or to step 0, and skips the batches since then.

        If the process is killed meanwhile, the next start meets the same anomaly, finds the same
        earlier checkpoints, and rewinds in the same way.
        """
        run, counters = self._run, self._run.recorder.counters
        to = self._go_back(target)
        offset = counters.offset + anomaly.step - to.step
        rewinds = counters.rewinds + 1
        run.recorder.continue_from(
            to._replace(offset=offset, rewinds=rewinds, pending_anomaly=None)
        )
        run.progress.message(
            f"step {anomaly.step}  {anomaly.reason}: back to step {to.step}, on with batch"
            f" {to.step + offset} (rewind {rewinds})"
        )

    def restore_latest(
        self, error: LostState, *, unreadable: Sequence[DamagedCheckpoint] = ()
    ) -> None:
        """Goes back to the latest undamaged checkpoint, or to step 0, as a restart would.

        `unreadable` is as for `store.latest`. Raises NoUsableCheckpoint if all are damaged.
        """
        run, directory = self._run, self._run.directory.checkpoints
        self._saver.wait()
        target = share_checkpoint(
            run.processes, directory, lambda: store.latest(directory, unreadable=unreadable)
        )
        if target is not None:
            store.quarantine_all(target.later_errors, report=run.progress.message)
        try:
            to = self._go_back(target)
        except DamagedCheckpoint as damage:
            if target is None or damage.path != target.path or run.processes.count > 1:
                raise
            return self.restore_latest(error, unreadable=[*unreadable, damage])
        run.recorder.continue_from(to)
        run.progress.message(f"{error}; back to step {to.step}")

    def _go_back(self, target: Checkpoint | None) -> RunCounters:
        """Loads a checkpoint or the first state, deletes later records, and returns its counters.

        The caller must pass the counters to the recorder, which still has the old ones.
        """
        run = self._run
        to = read_counters(target.step, target.metadata) if target else RunCounters()
        state = load_arrays(self._restore(target))  # read before anything is deleted
        self._saver.delete_later(after=to.step)
        run.recorder.cut(to.step)
        run.observers.tell(RunEvents.on_rewind, to.step)
        with explain_program_errors(f"loading step {to.step}"):
            run.program.load(state)
        return to
