"""A training run: from parameters and a directory to trained weights in it.

The same call starts a run, resumes one that was stopped, and does nothing for one that is done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lingo.config import text
from lingo.config.params import Params
from lingo.config.serial import Origin
from lingo.lazy import tf
from lingo.train import best, weight_table
from lingo.train.experiment import Experiment
from lingo.train.generate import check_prompts
from lingo.train.loop import Loop, Outcome, Position
from lingo.train.profile import Profile
from lingo.train.progress import Pace, Progress
from lingo.train.record import checkpoint, environment
from lingo.train.record.checkpoint import Checkpoint
from lingo.train.record.hparams import hparams
from lingo.train.record.resume import (
    RESOLVED,
    check_changes,
    check_data,
    digest,
    latest_checkpoint,
)
from lingo.train.record.run_directory import CONFIG, RunDirectory, State
from lingo.train.record.summaries import Summaries
from lingo.train.runtimes.runtime import Program
from lingo.train.signals import Signals
from lingo.train.state import initial_state, restored

ENVIRONMENT = "environment.json"

NO_STEPS = range(0)


class Request(NamedTuple):
    """What to train.

    Attributes:
        params: of an Experiment.
        config: the text of config.json.
        flags: the text of flags.txt, which asks for the same again.
        origin: where the parameters came from.
        profile_steps: steps that are recorded for TensorBoard's profile tab: 10, ..., 14 from when
            10 are done until 15 are.
    """

    params: Params
    config: str
    flags: str
    origin: Origin = Origin()
    profile_steps: range = NO_STEPS


def train(request: Request, run: RunDirectory, *, allow_change: bool = False) -> Outcome:
    """Trains an experiment in a directory, from its latest checkpoint if there is one.

    Args:
        request: what to train.
        run: where.
        allow_change: whether another configuration than the directory's may go on from its
            checkpoint.

    Returns:
        How it ended.

    Raises:
        ParamError: if the experiment cannot be built, or its evaluations lack `evaluate.metric`.
        ChangedConfiguration: if the directory was begun with another configuration or other data.
        DirectoryLocked, NoUsableCheckpoint, CheckpointMismatch, NumericFailure, DataError,
            ProgramError, StorageError: as their names say.
    """
    experiment: Experiment = request.params.build()
    with Signals() as signals, run.locked(), Progress(max_steps=experiment.p.max_steps) as progress:
        lines = text.resolve(request.params)
        checkpoint.clear_leftovers(run.checkpoints)
        found = latest_checkpoint(run)
        changes = check_changes(run, lines, found, allow_change=allow_change)
        start = position(found)
        if found is not None and (state := _state(experiment, run, start.step)) != "stopped":
            return _left_alone(experiment, run, start, state, progress)
        data = prepared(experiment, progress)
        if found is not None and not allow_change:
            check_data(run, data, found)
        facts = _facts(experiment, data)
        program = _compiled(experiment, found)
        _write_texts(run, request, lines, facts, experiment)
        _announce(progress, run, found, changes)
        with (
            _status(run, start.step),
            Summaries(run, step=start.step) as summaries,
            Profile(run.path / "profile", request.profile_steps) as profile,
        ):
            total = weight_table.total_parameters(weight_table.rows(experiment.task))
            summaries.began(hparams(lines, request.origin, total_parameters=total))
            if changes or start.step == 0:
                summaries.text("config", text.render(lines), step=start.step)
            if start.step == 0:
                summaries.graph(program.graph(experiment.train_input.specs()))
            loop = Loop(
                experiment,
                program,
                run,
                start=start,
                metadata=_metadata(experiment, lines, facts),
                progress=progress,
                pace=Pace(peak_seconds=_peak_seconds(experiment, facts)),
                profile=profile,
            )
            outcome = loop.train(summaries, signals)
            outcome = outcome._replace(state=_state(experiment, run, outcome.step))
            summaries.ended(outcome.state)
        run.set_status(outcome.state, outcome.step)
        progress.message(f"{outcome.state} at step {outcome.step}{_left_out(outcome.skipped)}")
    return outcome


def position(found: Checkpoint | None) -> Position:
    """Returns where a run stands that goes on from a checkpoint, or begins."""
    if found is None:
        return Position()
    return Position(found.step, found.metadata.get("skipped_steps", 0))


def prepared(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """Opens all data, checks prompts by it, and returns what identifies it, by input."""
    found = {}
    for name, input in {"train": experiment.train_input, **experiment.eval_inputs}.items():
        with progress.work(f"indexing {name} data") as advance:
            input.prepare(progress=advance)
        found[name] = input.fingerprint()
    check_prompts(experiment)
    return found


# ---- how a run ends ----------------------------------------------------------------------------


def _state(experiment: Experiment, run: RunDirectory, step: int) -> State:
    """Returns what a run is whose steps are done so far: "done", "done (early)" or "stopped"."""
    if experiment.eval_inputs and not run.is_evaluated(step):
        return "stopped"
    if step >= experiment.p.max_steps:
        return "done"
    rows = [row for row in run.read_metrics() if row["step"] <= step]
    return "done (early)" if best.ranking(experiment, rows).is_enough else "stopped"


def _left_alone(
    experiment: Experiment, run: RunDirectory, at: Position, state: State, progress: Progress
) -> Outcome:
    """Says that there is nothing to do."""
    at.check_finite(experiment.p.guard.max_skipped_steps)
    if run.status() != (state, at.step):  # it was killed, or max_steps was lowered
        run.set_status(state, at.step)
    progress.message(f"{run.path} is {state}: step {at.step} of {experiment.p.max_steps}.")
    if state == "done (early)":
        p = experiment.p.evaluate
        progress.message(
            f"The last {p.patience} evaluations had no better {p.metric}: evaluate.patience."
        )
    return Outcome(at.step, {}, {}, skipped=at.skipped, state=state)


def _left_out(skipped: int) -> str:
    return f"; the last {skipped} changed nothing: they were not finite" if skipped else ""


@contextlib.contextmanager
def _status(run: RunDirectory, step: int) -> Iterator[None]:
    run.set_status("running", step)
    try:
        yield
    except BaseException:
        run.set_status("failed", max(checkpoint.steps(run.checkpoints), default=0))
        raise


# ---- what is needed ----------------------------------------------------------------------------


def _compiled(experiment: Experiment, found: Checkpoint | None) -> Program:
    learner = experiment.learner
    state = restored(learner, found) if found else initial_state(learner)
    program = experiment.mesh.start(learner, state)
    program.compile(experiment.train_input.specs(), num_steps=experiment.p.steps_per_loop)
    return program


def _facts(experiment: Experiment, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the run runs on; the devices' speed is measured where it will be compared."""
    devices = [device.name for device in tf.config.list_logical_devices()]
    speed = {}
    if experiment.step_flops():
        dtype = experiment.task.p.dtype
        peak = experiment.mesh.matmul_flops_per_second(dtype)
        speed = {"matmul_flops_per_second": peak, "matmul_dtype": dtype}
    return environment.environment(devices=devices, data=data, speed=speed)


def _peak_seconds(experiment: Experiment, facts: Mapping[str, Any]) -> float:
    flops = experiment.step_flops()
    return flops / facts["matmul_flops_per_second"] if flops else 0.0


def _metadata(
    experiment: Experiment, lines: Sequence[text.Line], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what each checkpoint records."""
    known = {key: facts[key] for key in ("data", "versions", "numerics")}
    return {"config": digest(lines), "seed": experiment.p.seed} | known


def _write_texts(
    run: RunDirectory,
    request: Request,
    lines: Sequence[text.Line],
    facts: Mapping[str, Any],
    experiment: Experiment,
) -> None:
    texts = {
        CONFIG: request.config,
        RESOLVED: text.render(lines),
        "flags.txt": request.flags,
        ENVIRONMENT: json.dumps(facts, indent=1) + "\n",
        "weights.txt": weight_table.render(experiment.task),
    }
    same = environment.is_same(run.read(ENVIRONMENT) or "", facts)
    run.write(texts, replaced={ENVIRONMENT} if same else ())


def _announce(
    progress: Progress,
    run: RunDirectory,
    found: Checkpoint | None,
    changes: Sequence[text.Change],
) -> None:
    progress.opened(run.path)
    for change in changes:
        progress.message(f"changed: {change}")
    if found is not None:
        for error in found.passed_over:
            aside = checkpoint.set_aside(error.path)
            progress.message(f"{error}; renamed to {aside.name}")
        progress.message(f"resumed from {found.path}")
