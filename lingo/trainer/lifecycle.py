"""The life of a run: it starts, it runs, it ends; STATUS says which.

    with mark_stopped_on_signal(run):
        check_health(...)                   # raises if the reason why it failed still holds
        if run_state(...) != "stopped":
            return skip_run(...)
    with mark_running(run, step):
        ...
    mark_ended(run, outcome, progress)

While it runs, `Saver` keeps the step in STATUS up to date; after a hang `supervisor` writes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

from lingo.checkpoints.run_counters import RunCounters
from lingo.config.errors import LingoError, NumericFailure
from lingo.contract import Experiment
from lingo.processes.processes import Processes
from lingo.storage.rows import State
from lingo.trainer.directory.resume import last_step
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.guard.guard import first_anomaly
from lingo.trainer.guard.incidents import DUMP, Incidents
from lingo.trainer.loop import Outcome
from lingo.trainer.progress import Progress


@contextlib.contextmanager
def mark_stopped_on_signal(run: RunDirectory) -> Iterator[None]:
    """Writes STATUS if a signal stops a run before its first step, unless the run is done."""
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
    """Raises NumericFailure if the run ended with one that its guard still stops on."""
    p = experiment.p
    wrong = first_anomaly(at, p.guard, max_steps=p.max_steps)
    if wrong is not None and wrong.action == "stop":
        run.set_status("failed", at.step)
        raise NumericFailure(Incidents(run.path / DUMP, say=progress.message).write(wrong))


def run_state(
    experiment: Experiment, run: RunDirectory, at: RunCounters, processes: Processes
) -> State:
    """Returns the state of a run with counters `at`: "done", "done (early)" or "stopped"."""
    own = _known_state(experiment, run, at) if processes.is_leader else None
    return cast(State, processes.share("state", own))


def _known_state(experiment: Experiment, run: RunDirectory, at: RunCounters) -> State:
    """Returns the state of a run according to its reports, which only the leader reads."""
    p = experiment.p
    if experiment.eval_inputs and not run.is_evaluated(at.step):
        return "stopped"
    if first_anomaly(at, p.guard, max_steps=p.max_steps) is not None:
        return "stopped"
    if at.step >= p.max_steps:
        return "done"
    rows = [row for row in run.metrics.read() if row["step"] <= at.step]
    return "done (early)" if best.ranking(experiment, rows).is_enough else "stopped"


def skip_run(
    experiment: Experiment, run: RunDirectory, at: RunCounters, state: State, progress: Progress
) -> Outcome:
    """Reports that a finished run has nothing left to do, and returns its outcome."""
    if run.status() != (state, at.step):  # the run was killed, or max_steps was lowered
        run.set_status(state, at.step)
    progress.message(f"{run.path} is {state}: step {at.step} of {experiment.p.max_steps}.")
    if state == "done (early)":
        p = experiment.p.evaluate
        progress.message(
            f"The last {p.patience} evaluations had no better {p.metric}: evaluate.patience."
        )
    return Outcome(at.step, {}, {}, skipped=at.health.num_skipped, state=state)


@contextlib.contextmanager
def mark_running(run: RunDirectory, step: int) -> Iterator[None]:
    """Writes "running" to STATUS, and "stopped" or "failed" after an error.

    Args:
        run: the run directory, locked.
        step: the number of steps already done.
    """
    run.set_status("running", step)
    try:
        yield
    except BaseException as error:
        _stopped(run, "stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def mark_ended(run: RunDirectory, outcome: Outcome, progress: Progress) -> None:
    """Writes to STATUS, and shows, how a run ended.

    Raises:
        StorageError: if STATUS cannot be written.
    """
    run.set_status(outcome.state, outcome.step)
    left_out = f"; the last {outcome.skipped} changed nothing: they were not finite"
    progress.message(f"{outcome.state} at step {outcome.step}{left_out if outcome.skipped else ''}")


def _stopped(run: RunDirectory, state: State) -> None:
    """Writes STATUS after an error; ignores a second error, which would hide the first."""
    with contextlib.suppress(LingoError):
        run.set_status(state, last_step(run))
