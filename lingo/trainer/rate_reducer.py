"""Lowers the learning rate when evaluations stop improving, as `optimizer.plateau` says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.learner.rate_factor import FACTOR
from lingo.learner.state import TrainState, load_arrays
from lingo.optim.plateau import Plateau
from lingo.runtimes.program import explain_program_errors
from lingo.trainer.evaluation import best
from lingo.trainer.live_run import LiveRun
from lingo.trainer.saver import Saver


class RateReducer:
    """Lowers the factor of the learning rates in a program's state.

    A step that is evaluated by `evaluate.metric` is saved before its evaluation, so its checkpoint
    lacks a fall that follows from this evaluation. A run that resumes or rewinds to it needs the
    fall again. So `lower` is called after each evaluation, start and rewind.
    """

    def __init__(
        self, run: LiveRun, saver: Saver, restore: Callable[[Checkpoint | None], TrainState]
    ) -> None:
        """Does nothing yet. `restore` returns a checkpoint's state."""
        self._run, self._saver, self._restore = run, saver, restore

    def lower(self) -> None:
        """Lowers the factor if the current step was evaluated and is the end of a plateau.

        All processes must call this together. Raises NoUsableCheckpoint if the step's checkpoint
        is lost.
        """
        run, plateau = self._run, self._run.experiment.optimizer.plateau
        if plateau is None:
            return
        step, is_leader = run.recorder.counters.step, run.processes.is_leader
        with run.watchdog.pause():
            if not run.processes.any(is_leader and self._falls(plateau, step)):
                return
        self._saver.wait()
        directory = run.directory.checkpoints
        target = store.share_checkpoint(
            run.processes, directory, lambda: store.find(directory, step, of=run.directory.path)
        )
        state = load_arrays(self._restore(target))
        factor = plateau.next_product(float(np.asarray(state.state[FACTOR])))
        with explain_program_errors(f"lowering the learning rate after step {step}"):
            run.program.load(state._replace(state={**state.state, FACTOR: np.float32(factor)}))
        metric, patience = run.experiment.p.evaluate.metric, plateau.p.patience
        run.progress.message(
            f"step {step}  learning rate x {factor:.3g}: the last {patience} evaluations had no"
            f" better {metric}"
        )

    def _falls(self, plateau: Plateau, step: int) -> bool:
        """Returns whether the evaluation of a step, if there was one, lowers the rate."""
        experiment = self._run.experiment
        ranking = best.ranking(experiment, self._run.directory.metrics.read())
        scores = [score for score in ranking.scores if score.step <= step]
        if not scores or scores[-1].step != step:
            return False
        values = [score.value for score in scores]
        return plateau.falls(values, ranking.goal)
