"""When the state of a run is saved, and which checkpoints stay.

with Saver(experiment, run, saved=0, committed=say) as saver:
    if saver.is_due(step):
        saver.save(step, state, metadata)        # returns at once; the thread goes on
    saver.check()                                # raises what went wrong meanwhile
    saver.wait()                                 # returns when it is on the disk
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from lingo.train.checkpoints import store
from lingo.train.checkpoints.errors import NoUsableCheckpoint
from lingo.train.checkpoints.writer import Policy, Writer
from lingo.train.evaluation import best
from lingo.train.experiment import Experiment
from lingo.train.faults import rewind
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.silent import SilentRun
from lingo.train.record.storage import StorageError
from lingo.train.runtimes.processes.processes import ALONE, Processes
from lingo.train.state import TrainState, named


class Saver:
    """Knows which steps of a run are saved, and saves them.

    Attributes:
        multiples: at these numbers of steps and their multiples a checkpoint is written.
        saved: the step that is saved, or will be when `wait` returns.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: RunDirectory,
        *,
        saved: int,
        committed: Callable[[int], None],
        processes: Processes = ALONE,
    ) -> None:
        """Writes nothing yet.

        Args:
            experiment: whose state is saved.
            run: where; locked by the leader.
            saved: the step that need not be saved: the run stands at it.
            committed: called with the step of a checkpoint once it is on the disk, in the thread.
            processes: which save it together: all call the same, in the same order.
        """
        self._experiment, self._run, self._processes = experiment, run, processes
        p = experiment.p.checkpoint
        self.multiples = [n for n in (p.every_steps, p.keep_every_steps) if n is not None]
        self.saved = saved
        policy = Policy(p.asynchronous, p.keep, p.keep_every_steps)
        self._writer = Writer(run.checkpoints, policy, committed=committed, processes=processes)
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
        """Returns whether a checkpoint is written after a step: also before one may be the best."""
        return self.is_regular(step) or step >= self._experiment.p.max_steps

    def is_regular(self, step: int) -> bool:
        """Returns whether a checkpoint is written after a step, whichever is the last."""
        p = self._experiment.p.evaluate
        compared = p.metric is not None and step % p.every_steps == 0
        return compared or any(step % n == 0 for n in self.multiples)

    def save(
        self, step: int, state: TrainState, metadata: Mapping[str, Any], *, refuge: int
    ) -> None:
        """Hands a state to the writer, when it has written the one before.

        Args:
            step: steps done.
            state: after them.
            metadata: what the checkpoint records.
            refuge: how many steps were in order; that to which the run would go back if those after
                it were not stays.

        Raises:
            StorageError: if this cannot be written, or the one before could not.
            NumericFailure: if a number of the one before was not finite.
        """
        self._run.check_there()
        tensors = named(self._experiment.learner, state)
        protected = self._protected([step], at_most=refuge) if self._processes.is_leader else []
        self._writer.save(step, tensors, metadata=metadata, protected=protected)
        self.saved = step

    def save_alone(self, step: int, state: TrainState, metadata: Mapping[str, Any]) -> bool:
        """Writes a state without the other processes, for they are lost; deletes nothing.

        Args:
            step: steps done.
            state: after them, all of it.
            metadata: what the checkpoint records.

        Returns:
            Whether it was not there yet.

        Raises:
            DirectoryLocked: if the leader still has the directory, or another process took over.
            StorageError, NumericFailure: as `save`.
        """
        with contextlib.ExitStack() as stack:
            run = self._run
            if isinstance(run, SilentRun):
                run = stack.enter_context(run.taken_over())
            run.check_there()
            if (there := store.steps(run.checkpoints)) and step <= there[-1]:
                return False
            tensors = named(self._experiment.learner, state)
            keep = len(there) + 1
            store.save(run.checkpoints, step=step, tensors=tensors, metadata=metadata, keep=keep)
            run.set_status("failed", step)
        self.saved = step
        return True

    def _protected(self, also: list[int], *, at_most: int) -> list[int]:
        """Returns steps whose checkpoints stay, however many come later.

        Also while nothing is wrong: many that are not regular may come before something is.

        Raises:
            StorageError: if nobody can tell: the checkpoints may be sound, their place is not.
        """
        try:
            chosen = best.protected(self._experiment, self._run)
            steps = [*store.steps(self._run.checkpoints), *also]
        except NoUsableCheckpoint as error:
            raise StorageError(str(error)) from error
        back = rewind.candidates(steps, at_most=at_most, is_regular=self.is_regular)
        return [*chosen, *back[:1]]
