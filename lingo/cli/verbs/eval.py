"""Evaluates checkpoints of a run on all its evaluation inputs.

    lingo eval --run=runs/tiny
    lingo eval --run=runs/tiny --step=200
    lingo eval --run=runs/tiny --step=best
    lingo eval --run=runs/tiny --watch
    lingo eval --run=runs/tiny --watch --set=runtime=Local
    lingo eval --run=runs/tiny --set="eval_inputs['heldout'].max_batches=None"

It prints a line for each input, and adds it to `eval_<input>/` in the directory of the run. It
may compute on other devices than the training did: --set=runtime=... With any other --set it only
prints, for the results would not be those of the run's own configuration. A run that is still
training is not disturbed.

With --watch it evaluates every checkpoint that was not evaluated by it before, and waits for more
until the run is done or has failed. Which checkpoint is best, evaluate.metric says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from absl import flags

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.chosen import share_checkpoints
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.cli import command, experiment_flags, params_dir
from lingo.cli.command import UsageError
from lingo.config import text
from lingo.config.registry import ResolvedExperiment
from lingo.contract import Experiment, build_experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation.best import BEST, choose
from lingo.trainer.evaluation.evaluate import Evaluator, tag_metrics
from lingo.trainer.evaluation.watch import (
    evaluated_steps,
    new_checkpoints,
    wait_for_run,
    write_evaluations,
)

WORD = ""
TIMEOUT_SECONDS = 3600


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define_run(values)
    experiment_flags.define_devices(values)
    command.string("step", "The checkpoint of this step, or the best one; else the latest.", values)
    command.boolean("watch", "Evaluate checkpoints as they come, until the run is over.", values)
    command.boolean("newest", "With --watch: of several that wait, only the latest.", values)
    command.integer(
        "timeout_seconds",
        f"With --watch: end after so long without news (default: {TIMEOUT_SECONDS}).",
        values,
        lower_bound=0,
    )


def run(values: flags.FlagValues, word: str) -> int:
    """Prints and writes the metrics of every evaluation input."""
    del word
    _check(values)
    directory = RunDirectory(values.run)
    if values.watch:
        wait_for_run(directory, timeout_seconds=_timeout(values))
    chosen = experiment_flags.resolve_run(
        values.run, values.set, values.trust, params_dir.find_roots(values)
    )
    experiment = build_experiment(chosen)
    experiment_flags.make_devices(values, chosen.params)
    if not experiment.eval_inputs:
        raise UsageError(f"{values.run} has no eval_inputs to evaluate on")
    is_same = _is_same(values, chosen)
    with experiment.runtime.join() as processes:
        if not is_same and processes.is_leader:
            experiment_flags.print_note(
                "--set: the results are not kept, for the run has another configuration."
            )
        evaluator = Evaluator(experiment)
        checkpoints = _checkpoints(values, experiment, directory, is_same=is_same)
        for found in share_checkpoints(processes, directory.checkpoints, checkpoints):
            try:
                results = evaluator.evaluate(found)
            except DamagedCheckpoint as error:
                if not values.watch:
                    raise
                _pass_over(error)
                continue
            if processes.is_leader:
                _keep(directory, found.step, results, is_same=is_same)
    return 0


def _is_same(values: flags.FlagValues, chosen: ResolvedExperiment) -> bool:
    """Returns whether overrides change nothing but `runtime`, and so not the results."""
    if not values.set:
        return True
    own = experiment_flags.resolve_run(values.run, [], values.trust, params_dir.find_roots(values))
    changes = text.diff(text.resolve(own.params), text.resolve(chosen.params))
    return all(change.path.partition(".")[0] == "runtime" for change in changes)


def _keep(
    directory: RunDirectory, step: int, results: Mapping[str, Mapping[str, float]], *, is_same: bool
) -> None:
    """Prints the results of a checkpoint, and writes those of the run's own configuration."""
    _show(step, results)
    if is_same:
        tags = {name: tag_metrics(metrics) for name, metrics in results.items()}
        write_evaluations(directory, step, tags)


def _check(values: flags.FlagValues) -> None:
    if values.run is None:
        raise UsageError("no run given: --run=DIR")
    if values.watch and values.step is not None:
        raise UsageError("--watch and --step both say which checkpoints: give one of them")
    if not values.watch and (values.newest or values.timeout_seconds is not None):
        raise UsageError("--newest and --timeout_seconds are for --watch")
    if values.step is not None and values.step != BEST and not _is_number(values.step):
        raise UsageError(f"--step={values.step} is no step: a number, or {BEST}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def _timeout(values: flags.FlagValues) -> float:
    return TIMEOUT_SECONDS if values.timeout_seconds is None else values.timeout_seconds


def _checkpoints(
    values: flags.FlagValues, experiment: Experiment, directory: RunDirectory, *, is_same: bool
) -> Iterator[Checkpoint]:
    """Yields the checkpoints to evaluate: one, or with --watch each new one.

    Args:
        values: the flags.
        experiment: the run's experiment.
        directory: the run directory.
        is_same: whether earlier evaluations had this configuration, so that they count as done.
    """
    if not values.watch:
        step = values.step if values.step in (None, BEST) else int(values.step)
        found = choose(experiment, directory, step)
        for damaged in found.passed_over:
            experiment_flags.print_note(f"passed over: {damaged}")
        yield found
        return
    done = evaluated_steps(directory, experiment.eval_inputs) if is_same else ()
    timeout_seconds = _timeout(values)
    for step in new_checkpoints(
        directory, done=done, newest=values.newest, timeout_seconds=timeout_seconds
    ):
        try:
            yield choose(experiment, directory, step)
        except (NoUsableCheckpoint, DamagedCheckpoint) as error:
            _pass_over(error)
    status = directory.status()
    if status is None or not status.is_over:
        experiment_flags.print_note(
            f"no news of {directory.path} for {timeout_seconds} s; it may be over."
        )


def _pass_over(error: Exception) -> None:
    """Prints that a checkpoint is skipped; the run may have deleted it meanwhile."""
    experiment_flags.print_note(f"passed over: {error}")


def _show(step: int, results: Mapping[str, Mapping[str, float]]) -> None:
    for name, metrics in results.items():
        shown = "  ".join(f"{metric}={value:.6g}" for metric, value in metrics.items())
        print(f"{name}  step={step}  {shown}", flush=True)
