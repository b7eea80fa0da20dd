"""The rewinder goes back to a checkpoint, and continues from there.

find a sound checkpoint                     # from before an anomaly; the latest if devices are lost
read its state                              # before anything is deleted
delete the checkpoints and reports of later steps
load the state
skip the batches since then                 # after an anomaly only: other data
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.checkpoints.run_counters import RunCounters, read_counters
from lingo.checkpoints.store import share_checkpoint
from lingo.contract import RunEvents
from lingo.learner.state import TrainState, load_arrays
from lingo.runtimes.program import LostState, explain_program_errors
from lingo.trainer.guard.guard import Anomaly
from lingo.trainer.live_run import LiveRun
from lingo.trainer.saver import Saver, intervals, rewind_targets


class Rewinder:
    """Rewinds a run: after anomalies as often as its guard allows, and after lost devices."""

    def __init__(
        self, run: LiveRun, saver: Saver, restore: Callable[[Checkpoint | None], TrainState]
    ) -> None:
        """Does nothing yet; `restore` reads a checkpoint, or makes the first state for None."""
        self._run, self._saver, self._restore = run, saver, restore

    def rewind_or_stop(self, anomaly: Anomaly) -> None:
        """Rewinds to before an anomaly.

        Raises NumericFailure if the guard stops the run, or there is no sound checkpoint.
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
        """Returns the preferred sound checkpoint, and adds those that are damaged to `damaged`."""
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

        If the process is killed meanwhile, the next one meets the same anomaly, finds the same
        earlier checkpoints, and does the same.
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
        """Goes back to the latest sound checkpoint, or to step 0, as a new start of the run would.

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
        """Loads a checkpoint, or the first state, cuts what came later, and returns its counters.

        The recorder still has the old ones.
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
