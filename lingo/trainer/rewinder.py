"""The rewinder goes back to a checkpoint from before an anomaly, and continues with other data.

find a sound checkpoint from before it      # or end the run with an error
read its state                              # before anything is deleted
delete the checkpoints and reports of later steps
load the state; skip the batches since then
"""

from __future__ import annotations

from collections.abc import Callable

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.run_counters import RunCounters, read_counters
from lingo.contract import Experiment
from lingo.learner.state import TrainState, load_arrays
from lingo.processes.processes import ALONE, Processes
from lingo.runtimes.runtime import Program, explain_program_errors
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard import rewind
from lingo.trainer.guard.guard import Anomaly
from lingo.trainer.journal import Journal
from lingo.trainer.progress import Progress
from lingo.trainer.saver import Saver
from lingo.trainer.summaries.summaries import Summaries


class Rewinder:
    """Rewinds a run, as often as its guard allows."""

    def __init__(
        self,
        experiment: Experiment,
        program: Program,
        run: RunDirectory,
        *,
        journal: Journal,
        saver: Saver,
        restore: Callable[[Checkpoint | None], TrainState],
        progress: Progress,
        processes: Processes = ALONE,
    ) -> None:
        """Stores the collaborators.

        Args:
            experiment: what is trained.
            program: the learner's program.
            run: the run directory, which has the checkpoints; locked by the leader.
            journal: has the run's counters.
            saver: knows which steps are saved.
            restore: reads the state of a checkpoint, or makes the initial one for None.
            progress: shows messages.
            processes: all rewind together.
        """
        self._experiment, self._program, self._run = experiment, program, run
        self._journal, self._saver, self._restore = journal, saver, restore
        self._progress, self._processes = progress, processes

    def answer(self, trouble: Anomaly, summaries: Summaries) -> None:
        """Rewinds to before an anomaly, or ends the run.

        Raises:
            NumericFailure: if the guard stops the run, or there is no sound checkpoint.
            NoUsableCheckpoint: if a checkpoint cannot be read now.
            ProgramError: if the devices cannot load the state.
            StorageError: if a pending checkpoint cannot be written, or later ones not deleted.
            LostWorker: if another process ends, or does not answer.
        """
        journal, before = self._journal, trouble.step - trouble.steps
        if trouble.action == "stop":
            raise journal.failure(trouble)
        if journal.at.rewinds >= (most := self._experiment.p.guard.max_rewinds):
            raise journal.failure(trouble, but=f"guard.max_rewinds={most}")
        self._saver.wait()
        found, damaged = rewind.target(
            self._run.checkpoints,
            at_most=before,
            is_regular=self._saver.is_regular,
            processes=self._processes,
        )
        if found is None and (damaged or before >= min(self._saver.multiples)):
            but = "; ".join(["there is no sound checkpoint from before", *map(str, damaged)])
            raise journal.failure(trouble, but=but)
        store.quarantine_all(damaged, report=self._progress.message)
        self._go_back(found, trouble, summaries)

    def _go_back(self, found: Checkpoint | None, trouble: Anomaly, summaries: Summaries) -> None:
        """Goes back to a checkpoint, or to step 0, and skips the batches since then.

        If the process is killed meanwhile, the next one meets the same anomaly, finds the same
        earlier checkpoints, and does the same.
        """
        at, to = (
            self._journal.at,
            read_counters(found.step, found.metadata) if found else RunCounters(),
        )
        state = load_arrays(self._restore(found))  # read before anything is deleted
        offset, rewinds = at.offset + trouble.step - to.step, at.rewinds + 1
        self._saver.give_up(after=to.step)
        summaries.cut(to.step)
        self._journal.cut(to.step)
        with explain_program_errors(f"loading step {to.step}"):
            self._program.load(state)
        self._journal.go_on(to._replace(offset=offset, rewinds=rewinds, pending_anomaly=None))
        self._progress.message(
            f"step {trouble.step}  {trouble.reason}: back to step {to.step}, on with batch"
            f" {to.step + offset} (rewind {rewinds})"
        )
