"""Evaluates checkpoints of a run on all its evaluation inputs.

    lingo eval --run=runs/tiny
    lingo eval --run=runs/tiny --step=200
    lingo eval --run=runs/tiny --step=best
    lingo eval --run=runs/tiny --watch
    lingo eval --run=runs/tiny --watch --set=runtime=Local
    lingo eval --run=runs/tiny --set="eval_inputs['heldout'].max_batches=None"

It prints a line for each input, and adds it to `eval_<input>/` in the run's directory.
--set=runtime=... computes on other devices than the training. With any other --set it only prints,
because the results belong to another configuration than the run's. A run that is still training is
not disturbed. The results of a run in a bucket are sent there, too.

With --watch it evaluates every checkpoint that was not evaluated before, and waits for more until
the run is done or has failed. --step=best is the best checkpoint by evaluate.metric.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.store import share_checkpoints
from lingo.cli import experiment_options
from lingo.cli.command import UsageError
from lingo.cli.experiment_options import DeviceOptions, RunOptions
from lingo.cli.options import StepOptions
from lingo.config import text
from lingo.config.options import option, option_class
from lingo.config.registry import ResolvedExperiment
from lingo.contract import Experiment, build_experiment
from lingo.trainer.directory.run_directory import RunDirectory, tag_metrics
from lingo.trainer.evaluation.answers import answer_line, describe_measures, hide_progress
from lingo.trainer.evaluation.best import choose
from lingo.trainer.evaluation.evaluate import (
    EvaluationResult,
    Evaluator,
    loss_tags,
)
from lingo.trainer.evaluation.watch import (
    evaluated_steps,
    new_checkpoints,
    wait_for_run,
    write_evaluations,
)


@option_class
class Options(StepOptions, RunOptions, DeviceOptions):
    """The options of `lingo eval`."""

    watch: bool = option("Evaluate checkpoints as they come, until the run is over.", default=False)
    newest: bool = option(
        "With --watch: if several checkpoints wait, only the latest.", default=False
    )
    timeout_seconds: int = option(
        "With --watch: end after this time without news.", default=3600, minimum=0
    )


def run(options: Options) -> int:
    """Prints and writes the metrics of every evaluation input."""
    _check(options)
    directory = RunDirectory(options.require_run())
    if options.watch:
        wait_for_run(directory, timeout_seconds=options.timeout_seconds)
    resolved = options.resolve_run()
    experiment = build_experiment(resolved)
    options.make_devices(resolved.params)
    if not experiment.eval_inputs:
        raise UsageError(f"{options.run} has no eval_inputs to evaluate on")
    is_same = _is_same(options, resolved)
    with experiment.runtime.join() as processes:
        if not is_same and processes.is_leader:
            experiment_options.print_note(
                "--set: the results are not kept, for the run has another configuration."
            )
        if experiment.evaluate.answers and processes.is_leader:
            for line in describe_measures(experiment).splitlines():
                experiment_options.print_note(f"answers: {line}")
        evaluator = Evaluator(experiment)
        show_progress = _print_progress if processes.is_leader else hide_progress
        unreadable: list[DamagedCheckpoint] = []
        checkpoints = _checkpoints(
            options, experiment, directory, is_same=is_same, unreadable=unreadable
        )
        for found in share_checkpoints(processes, directory.checkpoints, checkpoints):
            try:
                results = evaluator.evaluate_checkpoint(found, show_progress=show_progress)
            except (DamagedCheckpoint, DeletedCheckpoint) as error:
                if processes.count > 1 and not options.watch:
                    raise  # the other processes are still computing
                if isinstance(error, DamagedCheckpoint):
                    unreadable.append(error)
                    if options.step is not None:
                        raise
                experiment_options.print_note(f"passed over: {error}")
                continue
            if processes.is_leader:
                _show(found.step, results)
                if is_same:
                    _write(directory, experiment, found.step, results)
            if not options.watch:
                break
    return 0


def _is_same(options: Options, resolved: ResolvedExperiment) -> bool:
    """Returns whether overrides change only `runtime`, so that the results are the run's own."""
    if not options.set:
        return True
    own = options.resolve_run([])
    changes = text.diff(text.resolve(own.params), text.resolve(resolved.params))
    return all(change.path.partition(".")[0] == "runtime" for change in changes)


def _check(options: Options) -> None:
    options.require_run()
    if options.watch and options.step is not None:
        raise UsageError("--watch and --step both say which checkpoints: give one of them")
    if not options.watch and not options.flag_names.isdisjoint({"newest", "timeout_seconds"}):
        raise UsageError("--newest and --timeout_seconds are for --watch")


def _checkpoints(
    options: Options,
    experiment: Experiment,
    directory: RunDirectory,
    *,
    is_same: bool,
    unreadable: Sequence[DamagedCheckpoint],
) -> Iterator[Checkpoint]:
    """Yields the checkpoints to evaluate.

    Without --watch it is the checkpoint that --step chooses. After it, if it could not be
    evaluated, another is chosen, but none of `unreadable`, a list to which the caller adds. With
    --watch it is each checkpoint that this configuration has not evaluated yet, until the run ends.
    """
    if not options.watch:
        found = choose(experiment, directory, options.step)
        experiment_options.print_later_errors(found)
        yield found
        while True:  # the checkpoint could not be evaluated
            yield choose(experiment, directory, options.step, unreadable=unreadable)
    done = evaluated_steps(directory, experiment.eval_inputs) if is_same else ()
    for step in new_checkpoints(
        directory, done=done, newest=options.newest, timeout_seconds=options.timeout_seconds
    ):
        try:
            yield choose(experiment, directory, step)
        except (NoUsableCheckpoint, DamagedCheckpoint) as error:
            experiment_options.print_note(f"passed over: {error}")  # or the run has deleted it
    status = directory.status()
    if status is None or not status.is_over:
        experiment_options.print_note(
            f"no news of {directory.path} for {options.timeout_seconds} s; it may be over."
        )


def _show(step: int, results: Sequence[EvaluationResult]) -> None:
    for name, metrics, _, answers in results:
        shown = "  ".join(f"{metric}={value:.6g}" for metric, value in metrics.items())
        print(f"{name}  step={step}  {shown}", flush=True)
        for answer in answers:
            print(f"{name}  step={step}  answer  {answer_line(answer)}", flush=True)


def _write(
    directory: RunDirectory, experiment: Experiment, step: int, results: Sequence[EvaluationResult]
) -> None:
    """Adds the results of a checkpoint's evaluation to the run's directory."""
    rows = directory.metrics.read()
    summaries = {
        one.input: tag_metrics(one.summaries) | loss_tags(experiment, one, rows) for one in results
    }
    tags = {one.input: tag_metrics(one.metrics) for one in results}
    write_evaluations(directory, step, tags, summaries)


@contextlib.contextmanager
def _print_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function (done, total) that prints how many prompts are done, until all are."""

    def show(done: int, total: int) -> None:
        if done < total:
            experiment_options.print_note(f"{what}: {done} of {total} are done.")

    yield show
