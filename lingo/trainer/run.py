"""A training run trains an experiment in a directory.

The same call starts a run, resumes one that was stopped, and does nothing for one that is done.
If several processes train it together, only the leader writes files and shows progress.
"""

from __future__ import annotations

import functools
import logging

from lingo.checkpoints import store
from lingo.checkpoints.position import RunCounters
from lingo.config import text
from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.inspection import pipeline, pipeline_table, weight_table
from lingo.inspection.memory import check_memory
from lingo.inspection.pipeline_workload import find_pipelines
from lingo.processes.processes import AgreedSignals, Processes
from lingo.processes.signals import Signals
from lingo.storage import injection
from lingo.trainer import lifecycle
from lingo.trainer.directory.audit import AUDIT, Audit
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import Watchdog
from lingo.trainer.guard.incidents import DUMP, Incidents
from lingo.trainer.journal import Journal
from lingo.trainer.loop import Loop, Outcome
from lingo.trainer.profile import Profile
from lingo.trainer.progress import Pace, Progress
from lingo.trainer.request import Request
from lingo.trainer.start import Start, announce, begin, look, state_of, write_texts
from lingo.trainer.summaries.hparams import hparams
from lingo.trainer.summaries.summaries import Summaries

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
        run: the run directory.
        allow_change: whether a configuration that differs from the directory's may resume from its
            checkpoint.
        watchdog: detects hangs; None for none.

    Returns:
        How the run ended.

    Raises:
        ParamError: if the experiment cannot be built, has no room in this machine's memory, or its
            evaluations lack `evaluate.metric`.
        ChangedConfiguration: if the directory's run has another configuration or other data.
        DirectoryLocked, NoUsableCheckpoint, CheckpointMismatch, UnusableSource, NumericFailure,
            DataError, ProgramError, StorageError, LostWorker: as their names say.
    """
    experiment: Experiment = request.params.build()
    check_memory(experiment)
    with Signals() as signals:
        with signals.stop_at_once():
            processes = experiment.runtime.join()
        with processes:
            return _train(
                *(request, experiment, RunDirectory(run.path, enabled=processes.is_leader)),
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
    max_steps = experiment.p.max_steps
    with run.locked(), Progress(max_steps=max_steps, enabled=run.enabled) as progress:
        with signals.stop_at_once(), lifecycle.mark_stopped_on_signal(run):
            injection.at("start", 0)
            standing = look(request, run, processes, allow_change=allow_change)
            at, found = standing.at, standing.found
            lifecycle.check_health(experiment, run, at, progress)
            if found is not None:
                state = lifecycle.run_state(experiment, run, at, processes)
                if state != "stopped":
                    store.quarantine_all(found.passed_over, say=progress.message)
                    return lifecycle.skip_run(experiment, run, at, state, progress)
            start = begin(experiment, run, standing, progress, processes, allow_change=allow_change)
        write_texts(request, experiment, run, start)
        announce(experiment, run, start, progress)
        profile_folder = run.path / "profile"
        with (
            lifecycle.mark_running(run, at.step),
            Summaries(run, step=at.step) as summaries,
            Profile(profile_folder, request.profile_steps, enabled=run.enabled) as profile,
        ):
            _show(request, experiment, start, summaries)
            loop = Loop(
                experiment,
                start.program,
                run,
                journal=_journal(request, experiment, run, at, progress),
                restore=functools.partial(state_of, experiment, start.facts.get("init_from")),
                metadata=start.metadata(experiment),
                progress=progress,
                pace=Pace(peak_flops_per_second=start.peak_flops_per_second()),
                profile=profile,
                watchdog=watchdog,
                processes=processes,
            )
            if processes.count > 1:
                signals = AgreedSignals(signals, processes, watchdog.pause)
            outcome = loop.train(summaries, signals)
            state = lifecycle.run_state(experiment, run, loop.at, processes)
            outcome = outcome._replace(state=state)
            summaries.end_run(outcome.state)
        lifecycle.mark_ended(run, outcome, progress)
    return outcome


def _show(request: Request, experiment: Experiment, start: Start, summaries: Summaries) -> None:
    """Writes summaries of what is trained: hyperparameters, configuration, program, graph."""
    lines, at = start.standing.lines, start.standing.at
    total = weight_table.total_parameters(weight_table.rows(experiment.task))
    summaries.start_run(hparams(lines, request.origin, total_parameters=total))
    if start.standing.changes or at.step == 0:
        summaries.write_text("config", text.render(lines), step=at.step)
        _show_pipelines(experiment, at.step, summaries)
    if start.parts:
        summaries.write_text("program", start.parts, step=at.step)
    if at.step == 0:
        summaries.write_graph(start.program.graph(experiment.train_input.specs()))


def _show_pipelines(experiment: Experiment, step: int, summaries: Summaries) -> None:
    """Writes summaries of how pipelines are split, if any; a failure is only a warning."""
    try:
        workloads = find_pipelines(experiment, started=True)
        reports = [pipeline.report(workload, experiment) for workload in workloads]
    except ParamError as error:
        _log.warning("no picture of the pipeline: %s", error)
        return
    if reports:
        clocks = {report.path: report.schedule for report in reports}
        idle = {report.path: report.bubble_fraction for report in reports}
        summaries.write_pipelines(
            clocks, idle, "\n".join(map(pipeline_table.text, reports)), step=step
        )


def _journal(
    request: Request,
    experiment: Experiment,
    run: RunDirectory,
    at: RunCounters,
    progress: Progress,
) -> Journal:
    """Returns the journal of a run, with an audit log if the run has one or requests one."""
    incidents = Incidents(run.path / DUMP if run.enabled else None, say=progress.message)
    audit = None
    if run.enabled and (request.audit or (run.path / AUDIT).exists()):
        audit = Audit(run.path / AUDIT)
        audit.cut(at.step)
    return Journal(experiment, at, incidents=incidents, audit=audit)
