"""A training run trains an experiment in a directory.

The same call starts a run, resumes a stopped run, and does nothing for a finished run. If several
processes train a run together, only the leader writes files and shows progress.

The file STATUS says how far the run is. While the run trains, `Saver` keeps the step in STATUS up
to date; after a hang `guard/hang.py` writes STATUS.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

from lingo.checkpoints import store
from lingo.checkpoints.errors import DamagedCheckpoint
from lingo.checkpoints.run_counters import RunCounters
from lingo.config import text
from lingo.config.base.errors import LingoError, NumericFailure
from lingo.config.params import ParamError
from lingo.config.registry import find_changes
from lingo.contract import Experiment, ObservedRun, RunEvents
from lingo.inspection import pipeline_table, weight_table
from lingo.inspection.memory import check_memory
from lingo.inspection.pipeline import find_pipelines
from lingo.processes.processes import AgreedSignals
from lingo.processes.signals import Signals
from lingo.storage import injection
from lingo.storage.rows import State
from lingo.trainer.directory.audit import AUDIT, Audit
from lingo.trainer.directory.run_directory import RunDirectory, row_tag
from lingo.trainer.evaluation import best
from lingo.trainer.first_state import load_state
from lingo.trainer.guard.guard import DUMP, Incidents, find_first_anomaly
from lingo.trainer.guard.hang import Watchdog, watch_program
from lingo.trainer.live_run import LiveRun
from lingo.trainer.loop import Loop, Outcome
from lingo.trainer.observers import Observers
from lingo.trainer.profile import Profile
from lingo.trainer.progress import Progress
from lingo.trainer.request import Request, Run
from lingo.trainer.start import (
    RunStatus,
    Start,
    inspect_run,
    print_start,
    start_run,
    write_texts,
)
from lingo.trainer.step_recorder import StepRecorder
from lingo.trainer.summaries.about import about_text
from lingo.trainer.summaries.hparams import hparams, parameter_values
from lingo.trainer.summaries.summaries import Summaries
from lingo.trainer.throughput import Throughput
from lingo.trainer.uploads import Uploads, prepare_copies

_log = logging.getLogger(__name__)


class RunExists(LingoError):
    """The directory in which a new run was to be made holds a run already."""

    exit_code: ClassVar[int] = 2


def create(request: Request, directory: RunDirectory) -> Outcome:
    """Makes a run at step 0 with its first weights, which `train` in this directory continues.

    Raises RunExists if the directory holds a run already, and the errors of `train`.
    """
    if directory.exists:
        raise RunExists(f"{directory.path} holds a run already: name another directory")
    return train(request, directory, only_start=True)


def train(
    request: Request,
    directory: RunDirectory,
    *,
    watchdog: Watchdog | None = None,
    only_start: bool = False,
) -> Outcome:
    """Trains an experiment in a directory, from its latest checkpoint if there is one.

    With `only_start`, the state before the first step is saved, and nothing is trained.

    Raises:
        ParamError: if the experiment cannot be built or does not fit into this machine's memory,
            or if its evaluations lack `evaluate.metric`.
        ChangedConfiguration: if the directory's run has another configuration, code or data.
        DirectoryLocked, NoUsableCheckpoint, CheckpointMismatch, UnusableSource, NumericFailure,
            DataError, ProgramError, StorageError, LostWorker, ObserverError: see these classes.
    """
    experiment: Experiment = request.params.build()
    late = experiment.declares_late
    if not late:
        check_memory(experiment)
    with Signals() as signals:
        with signals.stop_at_once():
            processes = experiment.runtime.join()
        with processes:
            if late:
                experiment.train_input.check_specs()
                experiment.check_weights()
                check_memory(experiment)
            is_leader = processes.is_leader
            directory = RunDirectory(directory.path, enabled=is_leader)
            progress = Progress(experiment.length, enabled=is_leader)
            run = Run(
                request=request,
                experiment=experiment,
                directory=directory,
                progress=progress,
                processes=processes,
                observers=_observers(request, experiment, directory, progress, signals),
            )
            return _train(run, signals, watchdog, only_start=only_start)


def _observers(
    request: Request,
    experiment: Experiment,
    directory: RunDirectory,
    progress: Progress,
    signals: Signals,
) -> Observers:
    """Returns lingo's own observers and, only in the leader, the experiment's observers."""

    def stop(reason: str) -> None:
        progress.message(f"stopping: {reason}")
        signals.request()

    observed = ObservedRun(
        experiment=experiment,
        directory=directory.path,
        name=request.origin.name,
        parameters=parameter_values(text.resolve(request.params)),
        stop=stop,
    )
    observers = Observers(observed, experiment.observers if directory.enabled else ())
    observers.add(progress)
    return observers


def _train(run: Run, signals: Signals, watchdog: Watchdog | None, *, only_start: bool) -> Outcome:
    directory = run.directory
    with contextlib.ExitStack() as locked, run.progress:
        with signals.stop_at_once():  # a bucket may not answer
            locked.enter_context(directory.lock())
        if directory.mirror is not None:
            run.observers.add(Uploads(directory.mirror, run.experiment, directory, run.progress))
        prepare_copies(directory, run.processes)
        with signals.stop_at_once(), mark_stopped_on_signal(directory):
            injection.at("start", 0)
            start = _start_or_skip(run)
            if isinstance(start, Outcome):
                return start
        write_texts(run, start)
        print_start(run, start)
        step, profile_steps = start.status.counters.step, run.request.profile_steps
        with (
            mark_running(directory, step),
            Summaries(directory, step=step) as summaries,
            Profile(directory.profile, profile_steps, enabled=directory.enabled) as profile,
        ):
            _summarize_start(run, start, summaries)
            run.observers.add(summaries)
            live_run = _live_run(run, start, summaries, signals, watchdog or Watchdog())
            origin = start.environment.get("init_from")
            loop = Loop(
                live_run,
                restore=functools.partial(load_state, run, origin),
                metadata=start.metadata(run.experiment),
                profile=profile,
            )
            with run.observers.start(step):
                outcome = loop.save_start() if only_start else loop.train()
                outcome = outcome.end_as(run_state(run, live_run.recorder.counters))
            run.observers.tell(RunEvents.on_end, outcome.state)
        mark_ended(directory, outcome, run.progress)
    return outcome


def _check_profile(run: Run, step: int) -> None:
    """Raises ParamError if steps are to be profiled, but the run does none of them after `step`."""
    asked, last = run.request.profile_steps, run.experiment.length.steps
    if asked and (asked.stop <= step or asked.start >= last):
        raise ParamError(
            f"profile_steps={asked.start}:{asked.stop}: the run does the steps from {step} to"
            f" {last}: choose some of these"
        )


def _start_or_skip(run: Run, *, unreadable: Sequence[DamagedCheckpoint] = ()) -> Start | Outcome:
    """Prepares a run for its first step, or returns the outcome of a run that is done.

    A checkpoint that lingo did not write may verify and yet hold no tensors. A single process then
    uses the checkpoint before it; several processes end with the error.
    """
    status = inspect_run(run, unreadable=unreadable)
    found = status.checkpoint
    if found is not None:
        check_health(run, status.counters)
        state = run_state(run, status.counters)
        if state != "stopped":
            store.quarantine_all(found.later_errors, report=run.progress.message)
            return skip_run(run, status.counters, state)
    _check_profile(run, status.counters.step)
    run.observers.tell(RunEvents.on_begin, status.counters.step)
    try:
        return start_run(run, status)
    except DamagedCheckpoint as error:
        if found is None or error.path != found.path or run.processes.count > 1:
            raise
        return _start_or_skip(run, unreadable=[*unreadable, error])


def _live_run(
    run: Run, start: Start, summaries: Summaries, signals: Signals, watchdog: Watchdog
) -> LiveRun:
    directory, counters = run.directory, start.status.counters
    dump = directory.path / DUMP if directory.enabled else None
    audit = _open_audit(run, start.status) if directory.enabled else None
    if run.processes.count > 1:
        signals = AgreedSignals(signals, run.processes, watchdog.pause)
    incidents = Incidents(dump, report=run.progress.message)
    return LiveRun(
        **vars(run),
        program=watch_program(start.program, watchdog),
        recorder=StepRecorder(run.experiment, counters, incidents=incidents, audit=audit),
        summaries=summaries,
        signals=signals,
        throughput=Throughput(peak_flops_per_second=start.peak_flops_per_second()),
        watchdog=watchdog,
    )


def _open_audit(run: Run, status: RunStatus) -> Audit | None:
    """Returns the audit log, if this or an earlier start requests it; reports its missing rows."""
    path, found = run.directory.path / AUDIT, status.checkpoint
    was_audited = found is not None and found.metadata.get("audit")
    if not (run.request.audit or was_audited or path.exists()):
        return None
    audit = Audit(path)
    if missing := audit.resume(status.counters.step):
        run.progress.message(
            f"warning: {path} lacks the rows of steps {missing}, as a line in it says"
        )
    return audit


# ---- summaries of the experiment -----------------------------------------------------------------


def _summarize_start(run: Run, start: Start, summaries: Summaries) -> None:
    """Writes summaries of the experiment: hyperparameters, configuration, program, graph."""
    experiment, lines, step = run.experiment, start.status.lines, start.status.counters.step
    total = weight_table.total_parameters(weight_table.rows(experiment.task))
    hyperparameters = hparams(lines, run.request.origin, total_parameters=total)
    summaries.start_run(hyperparameters)
    if start.status.changes or step == 0:
        summaries.write_about(
            about_text(
                run.request.origin, start.environment, _find_changes(run), num_weights=total
            ),
            metric=(experiment.p.evaluate.metric or "accuracy").rpartition("/")[2],
            step=step,
        )
        summaries.write_text("config", text.render(lines), step=step)
        _summarize_pipelines(experiment, step, summaries)
    if start.program_text:
        summaries.write_text("program", start.program_text, step=step)
    if step == 0 and start.graph is not None:
        summaries.write_graph(start.graph)


def _find_changes(run: Run) -> list[text.Change]:
    """Returns how the experiment differs from its defaults; [] if its defaults are not known."""
    try:
        return find_changes(run.request.params, run.request.origin)
    except ParamError:  # the experiment was made in Python, or its function needs arguments
        return []


def _summarize_pipelines(experiment: Experiment, step: int, summaries: Summaries) -> None:
    """Writes summaries of how pipelines, if any, are split; a failure is only a warning."""
    try:
        reports = find_pipelines(experiment, started=True)
    except ParamError as error:
        _log.warning("no report on the pipeline: %s", error)
        return
    if reports:
        idle = {report.path: report.bubble_fraction for report in reports}
        table = "\n".join(map(pipeline_table.text, reports))
        summaries.write_pipelines(idle, table, step=step)


# ---- the run's state -----------------------------------------------------------------------------


@contextlib.contextmanager
def mark_stopped_on_signal(directory: RunDirectory) -> Iterator[None]:
    """Writes "stopped" to STATUS if a signal ends the body, before the first step of this start."""
    try:
        yield
    except KeyboardInterrupt:
        status = directory.status()
        if directory.exists and not (status is not None and status.is_done):
            _mark_after_error(directory, "stopped")
        raise


def check_health(run: Run, counters: RunCounters) -> None:
    """Raises NumericFailure if a run ended with an anomaly and its guard would stop it again."""
    experiment, directory = run.experiment, run.directory
    anomaly = find_first_anomaly(counters, experiment.p.guard, max_steps=experiment.length.steps)
    if anomaly is not None and anomaly.action == "stop":
        directory.set_status("failed", counters.step)
        incidents = Incidents(directory.path / DUMP, report=run.progress.message)
        raise NumericFailure(incidents.write(anomaly))


def run_state(run: Run, counters: RunCounters) -> State:
    """Returns the state of a run with these counters: "done", "done (early)" or "stopped"."""
    own = _known_state(run, counters) if run.processes.is_leader else None
    return cast(State, run.processes.share("state", own))


def _known_state(run: Run, counters: RunCounters) -> State:
    """Returns the state of a run according to its reports, which only the leader reads."""
    experiment, p, step = run.experiment, run.experiment.p, counters.step
    if experiment.eval_inputs and not run.directory.is_evaluated(step):
        return "stopped"
    if find_first_anomaly(counters, p.guard, max_steps=experiment.length.steps) is not None:
        return "stopped"
    if step >= experiment.length.steps:
        return "done"
    return "done (early)" if _ranking(run, step).ends_run else "stopped"


def _ranking(run: Run, step: int) -> best.Ranking:
    """Returns the ranking of the evaluations up to a step."""
    rows = [row for row in run.directory.metrics.read() if row["step"] <= step]
    return best.ranking(run.experiment, rows)


def skip_run(run: Run, counters: RunCounters, state: State) -> Outcome:
    """Reports that a finished run has nothing left to do, and returns its outcome."""
    directory, step, last = run.directory, counters.step, run.experiment.length.steps
    if directory.status() != (state, step):  # the run was killed, or max_steps was lowered
        directory.set_status(state, step)
    run.progress.message(f"{directory.path} is {state}: step {step} of {last}.")
    run.observers.tell(RunEvents.on_skip, step, state)
    if state == "done (early)":
        run.progress.message(best.describe_end(run.experiment, _ranking(run, step)))
    own = json.dumps(_last_reports(run, step)) if run.processes.is_leader else None
    reports = json.loads(run.processes.share("reports", own))
    return Outcome(step, *reports, num_skipped=counters.health.num_skipped, state=state)


def _last_reports(run: Run, step: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Returns `scalars` and `evaluations` of an `Outcome`: the last reports up to a step."""
    scalars: dict[str, float] = {}
    evaluations: dict[str, dict[str, float]] = {}
    for row in (row for row in run.directory.metrics.read() if row["step"] <= step):
        values = {tag: math.nan if value is None else value for tag, value in row.items()}
        if "loss/total" in values:
            scalars = {tag: v for tag, v in values.items() if not tag.startswith("eval/")}
            del scalars["step"], scalars["time"]
        for i, name in enumerate(run.experiment.evaluation_names):
            end = row_tag("", name, first=not i)
            own = {
                tag.removesuffix(end): value
                for tag, value in values.items()
                if tag.startswith("eval/") and tag.endswith(end) and (i or "@" not in tag)
            }
            evaluations |= {name: own} if own else {}
    return scalars, evaluations


@contextlib.contextmanager
def mark_running(directory: RunDirectory, step: int) -> Iterator[None]:
    """Writes "running at step `step`" to STATUS, and "stopped" or "failed" after an error."""
    directory.set_status("running", step)
    try:
        yield
    except BaseException as error:
        _mark_after_error(
            directory, "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        )
        raise


def mark_ended(directory: RunDirectory, outcome: Outcome, progress: Progress) -> None:
    """Shows how a run ended, and writes it to STATUS; raises StorageError if that fails."""
    directory.set_status(outcome.state, outcome.step)
    skipped = ""
    if outcome.num_skipped:
        skipped = f"; the last {outcome.num_skipped} changed nothing: they were not finite"
    progress.end(f"{outcome.state} at step {outcome.step}{skipped}")


def _mark_after_error(directory: RunDirectory, state: State) -> None:
    """Writes STATUS after an error; ignores a second error, which would hide the first."""
    with contextlib.suppress(LingoError):
        directory.set_status(state, directory.last_step())
