"""A training run: from parameters and a directory to trained weights in it.

The same call starts a run, resumes one that was stopped, and does nothing for one that is done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from lingo.config import text
from lingo.config.params import Params
from lingo.errors import LingoError
from lingo.lazy import tf
from lingo.train import weight_table
from lingo.train.experiment import Experiment
from lingo.train.loop import Loop, Outcome
from lingo.train.progress import Progress
from lingo.train.record import checkpoint
from lingo.train.record.environment import environment
from lingo.train.record.run_directory import CONFIG, RunDirectory
from lingo.train.record.summaries import Summaries
from lingo.train.signals import Signals
from lingo.train.state import initial_state, restored

RESOLVED = "config.txt"
ENVIRONMENT = "environment.json"


class ChangedConfiguration(LingoError):
    """The directory holds a run with another configuration."""

    exit_code: ClassVar[int] = 7


class Request(NamedTuple):
    """What to train.

    Attributes:
        params: of an Experiment.
        config: the text of config.json.
        flags: the text of flags.txt, which asks for the same again.
    """

    params: Params
    config: str
    flags: str


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
        ParamError: if the experiment cannot be built.
        ChangedConfiguration: if the directory was begun with another configuration or other data.
        DirectoryLocked, NoUsableCheckpoint, CheckpointMismatch, NumericFailure, DataError,
            StorageError: as their names say.
    """
    experiment: Experiment = request.params.build()
    with Signals() as signals, run.locked(), Progress(max_steps=experiment.p.max_steps) as progress:
        lines = text.resolve(request.params)
        changes = _changes(run, lines)
        _check_changes(run, changes, allow_change=allow_change)
        checkpoint.clear_leftovers(run.checkpoints)
        found = checkpoint.latest(run.checkpoints)
        step = found.step if found else 0
        if found is not None and _is_done(experiment, run, step):
            progress.message(f"{run.path} is done: step {step} of {experiment.p.max_steps}.")
            return Outcome(step, {}, {})
        facts = environment(devices=_devices(), data=_prepared(experiment, progress))
        _check_data(run, facts["data"], allow_change=allow_change)
        learner = experiment.learner
        state = restored(learner, found) if found else initial_state(learner)
        program = experiment.mesh.start(learner, state)
        program.compile(experiment.train_input.specs(), num_steps=experiment.p.steps_per_loop)
        run.write(_texts(request, lines, facts, experiment))
        _announce(progress, run, found, changes)
        metadata = {"config": text.digest(lines), "seed": experiment.p.seed} | {
            key: facts[key] for key in ("data", "versions", "numerics")
        }
        loop = Loop(
            experiment,
            program,
            run,
            step=step,
            metadata=metadata,
            progress=progress,
        )
        with _status(run, step), Summaries(run, step=step) as summaries:
            summaries.text("config", text.render(lines), step=step)
            outcome = loop.train(summaries, signals)
        done = _is_done(experiment, run, outcome.step)
        run.set_status("done" if done else "stopped", outcome.step)
        progress.message(f"{'done' if done else 'stopped'} at step {outcome.step}")
    return outcome


def _is_done(experiment: Experiment, run: RunDirectory, step: int) -> bool:
    evaluated = not experiment.eval_inputs or run.is_evaluated(step)
    return step >= experiment.p.max_steps and evaluated


@contextlib.contextmanager
def _status(run: RunDirectory, step: int) -> Iterator[None]:
    run.set_status("running", step)
    try:
        yield
    except BaseException:
        run.set_status("failed", max(checkpoint.steps(run.checkpoints), default=0))
        raise


# ---- what changed ----------------------------------------------------------------------------


def _changes(run: RunDirectory, lines: Sequence[text.Line]) -> list[text.Change]:
    """Returns the fields in which a directory's run differs from what is asked for."""
    before = run.read(RESOLVED)
    return [] if before is None else text.diff(text.read(before), lines)


def _check_changes(
    run: RunDirectory, changes: Sequence[text.Change], *, allow_change: bool
) -> None:
    refused = [str(change) for change in changes if not change.operational]
    if refused and not allow_change:
        listed = "\n  ".join(refused)
        raise ChangedConfiguration(
            f"{run.path} was begun with another configuration:\n  {listed}\n"
            "Train in another directory, or pass --allow_change to go on from its checkpoint."
        )


def _check_data(run: RunDirectory, data: Mapping[str, Any], *, allow_change: bool) -> None:
    before = json.loads(run.read(ENVIRONMENT) or "{}").get("data")
    if before is not None and before != json.loads(json.dumps(data)) and not allow_change:
        raise ChangedConfiguration(
            f"{run.path} was begun with other data:\n  {before}\n  is now {data}\n"
            "Train in another directory, or pass --allow_change to go on from its checkpoint."
        )


# ---- what is needed --------------------------------------------------------------------------


def _prepared(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """Opens all data and returns what identifies it, by input."""
    found = {}
    for name, input in {"train": experiment.train_input, **experiment.eval_inputs}.items():
        with progress.work(f"indexing {name} data") as advance:
            input.prepare(progress=advance)
        found[name] = input.fingerprint()
    return found


def _devices() -> list[str]:
    return [device.name for device in tf.config.list_logical_devices()]


def _texts(
    request: Request, lines: Sequence[text.Line], facts: Mapping[str, Any], experiment: Experiment
) -> dict[str, str]:
    return {
        CONFIG: request.config,
        RESOLVED: text.render(lines),
        "flags.txt": request.flags,
        ENVIRONMENT: json.dumps(facts, indent=1) + "\n",
        "weights.txt": weight_table.render(experiment.task),
    }


def _announce(
    progress: Progress,
    run: RunDirectory,
    found: checkpoint.Checkpoint | None,
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
