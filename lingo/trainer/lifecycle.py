"""The life of a run: it starts, it runs, it ends; STATUS says which.

    with starting(run):
        check_health(...)                   # it may have ended for a reason that still holds
        if state(...) != "stopped":
            return left_alone(...)
    with running(run, step):
        ...
    ended(run, outcome, progress)

While it runs, `Saver` keeps the step in STATUS up to date; of a process that was killed in a hang
`supervisor` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

from lingo.checkpoints.position import RunCounters
from lingo.config.errors import LingoError, NumericFailure
from lingo.contract import Experiment
from lingo.processes.processes import Processes
from lingo.storage.status import State
from lingo.trainer.directory.resume import last_step
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.guard.guard import first_anomaly
from lingo.trainer.guard.incidents import DUMP, Incidents
from lingo.trainer.loop import Outcome
from lingo.trainer.progress import Progress


@contextlib.contextmanager
def starting(run: RunDirectory) -> Iterator[None]:
    """Says in STATUS that a run was stopped before it went on; one that is done stays so."""
    try:
        yield
    except KeyboardInterrupt:
        status = run.status()
        if run.exists and not (status is not None and status.is_done):
            _stopped(run, "stopped")
        raise


def check_health(
    experiment: Experiment, run: RunDirectory, at: RunCounters, progress: Progress
) -> None:
    """Raises NumericFailure if that is how the run ended, and nothing was changed since."""
    p = experiment.p
    wrong = first_anomaly(at, p.guard, max_steps=p.max_steps)
    if wrong is not None and wrong.action == "stop":
        run.set_status("failed", at.step)
        raise NumericFailure(Incidents(run.path / DUMP, say=progress.message).write(wrong))


def state(
    experiment: Experiment, run: RunDirectory, at: RunCounters, processes: Processes
) -> State:
    """Returns what a run is whose steps are done so far: "done", "done (early)" or "stopped"."""
    own = _known_state(experiment, run, at) if processes.is_leader else None
    return cast(State, processes.share("state", own))


def _known_state(experiment: Experiment, run: RunDirectory, at: RunCounters) -> State:
    """Returns what a run is by its reports, which the leader knows."""
    p = experiment.p
    if experiment.eval_inputs and not run.is_evaluated(at.step):
        return "stopped"
    if first_anomaly(at, p.guard, max_steps=p.max_steps) is not None:
        return "stopped"
    if at.step >= p.max_steps:
        return "done"
    rows = [row for row in run.metrics.read() if row["step"] <= at.step]
    return "done (early)" if best.ranking(experiment, rows).is_enough else "stopped"


def left_alone(
    experiment: Experiment, run: RunDirectory, at: RunCounters, found: State, progress: Progress
) -> Outcome:
    """Says that there is nothing to do, for a run that is found to be done."""
    if run.status() != (found, at.step):  # it was killed, or max_steps was lowered
        run.set_status(found, at.step)
    progress.message(f"{run.path} is {found}: step {at.step} of {experiment.p.max_steps}.")
    if found == "done (early)":
        p = experiment.p.evaluate
        progress.message(
            f"The last {p.patience} evaluations had no better {p.metric}: evaluate.patience."
        )
    return Outcome(at.step, {}, {}, skipped=at.health.skipped, state=found)


@contextlib.contextmanager
def running(run: RunDirectory, step: int) -> Iterator[None]:
    """Says in STATUS that a run goes on, and after an error that it does not.

    Args:
        run: locked.
        step: steps done before.
    """
    run.set_status("running", step)
    try:
        yield
    except BaseException as error:
        _stopped(run, "stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def ended(run: RunDirectory, outcome: Outcome, progress: Progress) -> None:
    """Says in STATUS, and to whoever looks, how a run ended.

    Raises:
        StorageError: if it cannot be written that the run is done.
    """
    run.set_status(outcome.state, outcome.step)
    left_out = f"; the last {outcome.skipped} changed nothing: they were not finite"
    progress.message(f"{outcome.state} at step {outcome.step}{left_out if outcome.skipped else ''}")


def _stopped(run: RunDirectory, state: State) -> None:
    """Writes STATUS after an error; one more that comes with it says nothing new."""
    with contextlib.suppress(LingoError):
        run.set_status(state, last_step(run))
