"""A training run: from parameters and a directory to trained weights in it.

The same call starts a run, resumes one that was stopped, and does nothing for one that is done.
Where several processes make it together, the leader writes and shows what all of them do.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import cast

from lingo.config import text
from lingo.config.params import ParamError
from lingo.errors import LingoError
from lingo.train.checkpoints import store
from lingo.train.evaluation import best
from lingo.train.experiment import Experiment
from lingo.train.faults import injection
from lingo.train.faults.agreed_signals import AgreedSignals
from lingo.train.faults.errors import NumericFailure
from lingo.train.faults.hang import Watchdog
from lingo.train.faults.incidents import DUMP, Incidents
from lingo.train.faults.signals import Signals
from lingo.train.inspection import pipeline, pipeline_table, weight_table
from lingo.train.inspection.memory import check_memory
from lingo.train.inspection.pipelined import pipelined
from lingo.train.inspection.profile import Profile
from lingo.train.loop import Loop, Outcome
from lingo.train.progress import Pace, Progress
from lingo.train.record.audit import AUDIT, Audit
from lingo.train.record.hparams import hparams
from lingo.train.record.journal import Journal
from lingo.train.record.position import Position
from lingo.train.record.resume import last_step
from lingo.train.record.run_directory import RunDirectory
from lingo.train.record.silent import SilentEvents, SilentRun
from lingo.train.record.status import State
from lingo.train.record.summaries import Summaries
from lingo.train.runtimes.processes.processes import Processes
from lingo.train.start import Request, Start, announce, begin, look, state_of, write_texts

_log = logging.getLogger(__name__)


def train(
    request: Request,
    run: RunDirectory,
    *,
    allow_change: bool = False,
    watchdog: Watchdog | None = None,
) -> Outcome:
    """Trains an experiment in a directory, from its latest checkpoint if there is one.

    Args:
        request: what to train.
        run: where.
        allow_change: whether another configuration than the directory's may go on from its
            checkpoint.
        watchdog: is kept quiet while the run gets on; None if nobody watches.

    Returns:
        How it ended.

    Raises:
        ParamError: if the experiment cannot be built, has no room in this machine's memory, or its
            evaluations lack `evaluate.metric`.
        ChangedConfiguration: if the directory was begun with another configuration or other data.
        DirectoryLocked, NoUsableCheckpoint, CheckpointMismatch, UnusableSource, NumericFailure,
            DataError, ProgramError, StorageError, LostWorker: as their names say.
    """
    experiment: Experiment = request.params.build()
    check_memory(experiment)
    with Signals() as signals:
        with signals.leaving():
            processes = experiment.mesh.join()
        with processes:
            return _train(
                *(request, experiment, run if processes.is_leader else SilentRun(run.path)),
                allow_change=allow_change,
                watchdog=watchdog or Watchdog(),
                signals=signals,
                processes=processes,
            )


def _train(
    request: Request,
    experiment: Experiment,
    run: RunDirectory,
    *,
    allow_change: bool,
    watchdog: Watchdog,
    signals: Signals,
    processes: Processes,
) -> Outcome:
    with run.locked(), _progress(experiment, processes) as progress:
        with signals.leaving(), _left(run):
            injection.at("start", 0)
            standing = look(request, run, processes, allow_change=allow_change)
            at, found = standing.at, standing.found
            _check_health(experiment, run, at, progress)
            if found is not None and (state := _state(experiment, run, at, processes)) != "stopped":
                store.set_aside_all(found.passed_over, say=progress.message)
                return _left_alone(experiment, run, at, state, progress)
            start = begin(experiment, run, standing, progress, processes, allow_change=allow_change)
        write_texts(request, experiment, run, start)
        announce(experiment, run, start, progress)
        silent = {} if processes.is_leader else {"events_": SilentEvents(run.path)}
        with (
            _status(run, at.step),
            Summaries(run, step=at.step, **silent) as summaries,
            Profile(
                run.path / "profile", request.profile_steps, is_silent=not processes.is_leader
            ) as profile,
        ):
            _show(request, experiment, start, summaries)
            loop = Loop(
                experiment,
                start.program,
                run,
                journal=_journal(request, experiment, run, at, progress, processes),
                restore=functools.partial(state_of, experiment, start.facts.get("init_from")),
                metadata=start.metadata(experiment),
                progress=progress,
                pace=Pace(peak_seconds=start.peak_seconds(experiment)),
                profile=profile,
                watchdog=watchdog,
                processes=processes,
            )
            if processes.count > 1:
                signals = AgreedSignals(signals, processes, watchdog)
            outcome = loop.train(summaries, signals)
            outcome = outcome._replace(state=_state(experiment, run, loop.at, processes))
            summaries.ended(outcome.state)
        run.set_status(outcome.state, outcome.step)
        progress.message(f"{outcome.state} at step {outcome.step}{_left_out(outcome.skipped)}")
    return outcome


def _progress(experiment: Experiment, processes: Processes) -> Progress:
    max_steps = experiment.p.max_steps
    if processes.is_leader:
        return Progress(max_steps=max_steps)
    return Progress.silent(max_steps=max_steps)


def _show(request: Request, experiment: Experiment, start: Start, summaries: Summaries) -> None:
    """Shows what is trained: hyperparameters, configuration, and the graph of a step."""
    lines, at = start.standing.lines, start.standing.at
    total = weight_table.total_parameters(weight_table.rows(experiment.task))
    summaries.began(hparams(lines, request.origin, total_parameters=total))
    if start.standing.changes or at.step == 0:
        summaries.text("config", text.render(lines), step=at.step)
        _show_pipelines(experiment, at.step, summaries)
    if start.parts:
        summaries.text("program", start.parts, step=at.step)
    if at.step == 0:
        summaries.graph(start.program.graph(experiment.train_input.specs()))


def _show_pipelines(experiment: Experiment, step: int, summaries: Summaries) -> None:
    """Shows how pipelines were split, if there are any; training does not depend on it."""
    try:
        reports = [pipeline.report(one, experiment) for one in pipelined(experiment)]
    except ParamError as error:
        _log.warning("no picture of the pipeline: %s", error)
        return
    if reports:
        clocks = {report.path: report.schedule for report in reports}
        summaries.pipelines(clocks, "\n".join(map(pipeline_table.text, reports)), step=step)


def _journal(
    request: Request,
    experiment: Experiment,
    run: RunDirectory,
    at: Position,
    progress: Progress,
    processes: Processes,
) -> Journal:
    """Returns the journal of a run, with an audit log if the run has one or is to have one.

    What it says of the examples of a step is what this process feeds: the leader's part.
    """
    if not processes.is_leader:
        return Journal(experiment, at, incidents=Incidents(None, say=progress.message))
    audit = Audit(run.path / AUDIT)
    audit.cut(at.step)
    wanted = audit if request.audit or audit.path.exists() else None
    incidents = Incidents(run.path / DUMP, say=progress.message)
    return Journal(experiment, at, incidents=incidents, audit=wanted)


# ---- how a run ends ----------------------------------------------------------------------------


def _state(experiment: Experiment, run: RunDirectory, at: Position, processes: Processes) -> State:
    """Returns what a run is whose steps are done so far: "done", "done (early)" or "stopped"."""
    own = _known_state(experiment, run, at) if processes.is_leader else None
    return cast(State, processes.share("state", own))


def _known_state(experiment: Experiment, run: RunDirectory, at: Position) -> State:
    """Returns what a run is by its reports, which the leader knows."""
    p = experiment.p
    if experiment.eval_inputs and not run.is_evaluated(at.step):
        return "stopped"
    if at.trouble(p.guard, max_steps=p.max_steps) is not None:
        return "stopped"
    if at.step >= p.max_steps:
        return "done"
    rows = [row for row in run.metrics.read() if row["step"] <= at.step]
    return "done (early)" if best.ranking(experiment, rows).is_enough else "stopped"


def _left_alone(
    experiment: Experiment, run: RunDirectory, at: Position, state: State, progress: Progress
) -> Outcome:
    """Says that there is nothing to do."""
    if run.status() != (state, at.step):  # it was killed, or max_steps was lowered
        run.set_status(state, at.step)
    progress.message(f"{run.path} is {state}: step {at.step} of {experiment.p.max_steps}.")
    if state == "done (early)":
        p = experiment.p.evaluate
        progress.message(
            f"The last {p.patience} evaluations had no better {p.metric}: evaluate.patience."
        )
    return Outcome(at.step, {}, {}, skipped=at.health.skipped, state=state)


def _check_health(
    experiment: Experiment, run: RunDirectory, at: Position, progress: Progress
) -> None:
    """Raises NumericFailure if that is how the run ended, and nothing was changed since."""
    p = experiment.p
    wrong = at.trouble(p.guard, max_steps=p.max_steps)
    if wrong is not None and wrong.answer == "stop":
        run.set_status("failed", at.step)
        raise NumericFailure(Incidents(run.path / DUMP, say=progress.message).write(wrong))


def _left_out(skipped: int) -> str:
    return f"; the last {skipped} changed nothing: they were not finite" if skipped else ""


@contextlib.contextmanager
def _left(run: RunDirectory) -> Iterator[None]:
    """Says in STATUS that a run was stopped before it went on; one that is done stays so."""
    try:
        yield
    except KeyboardInterrupt:
        status = run.status()
        if run.exists and not (status is not None and status.is_done):
            _stopped(run, "stopped")
        raise


@contextlib.contextmanager
def _status(run: RunDirectory, step: int) -> Iterator[None]:
    run.set_status("running", step)
    try:
        yield
    except BaseException as error:
        _stopped(run, "stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def _stopped(run: RunDirectory, state: State) -> None:
    """Writes STATUS after an error; one more that comes with it says nothing new."""
    with contextlib.suppress(LingoError):
        run.set_status(state, last_step(run))
