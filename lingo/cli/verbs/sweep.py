"""Trains an experiment many times with different values, and names the best.

The same command resumes it.

    lingo sweep --exp=lm.source.tiny --logdir=runs/sweep \\
        --sweep=optimizer.learning_rate=1e-3,3e-3 --sweep=FeedForward.activation=relu,gelu
    lingo sweep ... --workers=4                          four trials at a time
    lingo sweep ... --print                              the commands, for a cluster
    lingo sweep ... --search=random --num_trials=20 \\
        --sweep='optimizer.learning_rate=log(1e-4..1e-2)' --sweep=exp.num_layers=2..8
    lingo sweep ... --prune=median                       ends trials that are behind
    lingo sweep ... --search=optuna --num_trials=50      needs: pip install 'lingo-tf[sweep]'

Every trial is an ordinary run in its own directory; `tensorboard --logdir=runs/sweep` shows all in
one table. Ctrl+C and SIGTERM save and stop.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from lingo.cli import command
from lingo.cli.command import UsageError, Verb
from lingo.cli.experiment_options import ExperimentOptions, resolve_name
from lingo.cli.options import SweepOptions
from lingo.config import registry, text
from lingo.config.classes import Classes
from lingo.config.options import declarations, option, option_class
from lingo.config.overrides import apply
from lingo.config.registry import ResolvedExperiment
from lingo.config.source_files import find_user_files
from lingo.config.text import Line
from lingo.contract import build_experiment
from lingo.study.metric import Metric, check_metric, choose_metric
from lingo.study.plan import SweepRequest, remaining_trials
from lingo.study.pruning import read_pruning
from lingo.study.report import seed_table, trial_table
from lingo.study.run import SweepOutcome, launch_locally, run_sweep
from lingo.study.search import corner_points
from lingo.study.space import read_axes
from lingo.study.trial import Result, name_point_in_errors, overrides

FAILED = 1

_SHARED = ("exp", "run", "trust", "params_dir", "set")  # options that all trials have


@option_class
class Options(SweepOptions, ExperimentOptions):
    """The options of `lingo sweep`."""

    logdir: str | None = option("Directory of the sweep; it holds a run for each trial.")
    sweep: Sequence[str] = option(
        "path=a,b,c or path=low..high or path=log(low..high).", default=()
    )
    print: bool = option("Print the commands of the trials instead of running them.", default=False)


def run(options: Options) -> int:
    """Runs the trials; returns 0, 1 if a trial failed, or 128 + the signal that ended the sweep."""
    request = read_request(options)
    if options.print:
        print("".join(f"{trial.command}\n" for trial in remaining_trials(request)), end="")
        return 0
    outcome = _run_trials(request, num_workers=options.workers)
    if outcome.results:
        _print_results(outcome.results, request.metric)
    if outcome.signal is not None:
        return 128 + outcome.signal
    return FAILED if any(result.state == "failed" for result in outcome.results) else 0


def sweep(options: Options) -> SweepOutcome:
    """Runs the trials as `lingo sweep` does, but does not print the results; for `lingo.sweep`."""
    names = [declared.field for declared in declarations(Options)]
    texts = command.arguments(options, names)
    options = command.read("sweep", cast(Verb, sys.modules[__name__]), texts)  # checks the options
    return _run_trials(read_request(options), num_workers=options.workers)


def _run_trials(request: SweepRequest, *, num_workers: int) -> SweepOutcome:
    program = (sys.executable, "-P", "-m", "lingo.cli.main")
    launch = functools.partial(launch_locally, program=program, num_workers=num_workers)
    show = functools.partial(print, flush=True)
    return run_sweep(request, launch=launch, num_workers=num_workers, show=show)


def read_request(options: Options) -> SweepRequest:
    """Returns the sweep that the flags request; raises ParamError for any mistake in them."""
    if not options.logdir:
        raise UsageError("no directory given: --logdir=DIR")
    if not options.sweep:
        raise UsageError("nothing to sweep: --sweep=path=a,b,c")
    if options.search != "grid" and options.num_trials is None:
        raise UsageError(f"--search={options.search} needs --num_trials=N")
    for flag in ("num_trials", "seed"):
        if options.search == "grid" and getattr(options, flag) is not None:
            raise UsageError(f"--{flag} is for --search=random and optuna")
    if options.prune is not None:
        read_pruning(options.prune)
    axes = read_axes(options.sweep)
    point = corner_points(axes)[0]
    experiments = _Experiments(options, overrides(point))
    with name_point_in_errors(point):
        experiment = build_experiment(experiments.first)
    metric = choose_metric(experiment, options.metric, options.goal)
    if options.metric is not None:  # a run checks the experiment's own metric
        check_metric(experiment, options.metric)
    return SweepRequest(
        logdir=Path(options.logdir),
        train_arguments=(*command.arguments(options, _SHARED),),
        resolve=experiments.resolve,
        axes=axes,
        method=options.search,
        num_trials=options.num_trials or 0,
        seed=options.seed or 0,
        metric=metric,
        prune=options.prune or "",
        source=find_user_files(experiments.first.params, experiments.first.origin.file),
    )


class _Experiments:
    """Resolves the experiment of a sweep with the overrides of a trial.

    `first` is the experiment with the overrides of the first trial.
    """

    def __init__(self, options: Options, first: Sequence[str]) -> None:
        self._options, self._places = options, options.roots()
        if options.exp is None or options.run is not None:
            self._base = options.resolve()
            self.first = self._choose(first)
        else:  # resolved with overrides only, as a swept value may be a required argument
            self.first = resolve_name(options.exp, [*options.set, *first], self._places)

    def resolve(self, overrides: Sequence[str]) -> list[Line]:
        """Returns the resolved text with a trial's overrides, without TensorFlow.

        Raises ParamError if the experiment cannot be built.
        """
        resolved = self._choose(overrides)
        build_experiment(resolved)
        return text.resolve(resolved.params)

    def _choose(self, overrides: Sequence[str]) -> ResolvedExperiment:
        if self._options.exp is not None:
            every = [*self._options.set, *overrides]
            return registry.get(self._options.exp, every, self._places)
        params = self._base.params.copy()
        applied = apply(params, overrides, Classes(self._places, trust=self._options.trust))
        return ResolvedExperiment(params, self._base.origin, applied)


def _print_results(results: Sequence[Result], metric: Metric) -> None:
    for lines in filter(None, (trial_table(results, metric), seed_table(results, metric))):
        print("", *lines, sep="\n")
    print()
    best = results[0]
    if best.score is not None:
        print(f"best: {best.trial.path}, {metric.name} {best.score:.6g}\n  {best.trial.command}")
    else:
        print(f"best: none, since no finished trial reported a finite {metric.name}")
    num_pruned = sum(result.state == "pruned" for result in results)
    if num_pruned:
        print(f"{num_pruned} of {len(results)} pruned, at the steps in the table")
    num_failed = sum(result.state == "failed" for result in results)
    if num_failed:
        print(f"{num_failed} of {len(results)} failed; the same command tries them again")
