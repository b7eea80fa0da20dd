"""Trains an experiment many times with different values, and names the best.

The same command resumes it.

    lingo sweep --exp=lm.source.tiny --logdir=runs/sweep \\
        --sweep=optimizer.learning_rate=1e-3,3e-3 --sweep=FeedForward.activation=relu,gelu
    lingo sweep ... --workers=4                          four trials at a time
    lingo sweep ... --print                              the commands, for a cluster
    lingo sweep ... --search=random --num_trials=20 \\
        --sweep='optimizer.learning_rate=log(1e-4..1e-2)' --sweep=exp.num_layers=2..8
    lingo sweep ... --search=optuna --num_trials=50      needs: pip install 'lingo-tf[sweep]'

Every trial is an ordinary run in a directory of its own; `tensorboard --logdir=runs/sweep` has one
table for all. Ctrl+C and SIGTERM save and stop.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from absl import flags

from lingo.cli import command, experiment_flags
from lingo.cli.command import UsageError, Verb
from lingo.config import registry, text
from lingo.config.overrides.apply import apply
from lingo.config.registry import ResolvedExperiment
from lingo.config.roots.classes import Classes
from lingo.config.source_files import find_user_files
from lingo.config.text import Line
from lingo.contract import build_experiment
from lingo.study.metric import Metric, check_metric, choose_metric
from lingo.study.plan import SweepRequest, remaining_commands
from lingo.study.report import seed_table, trial_table
from lingo.study.run import SweepOutcome, launch_locally, run_sweep
from lingo.study.search import corner_points
from lingo.study.space import read_axes
from lingo.study.trial import Result, name_point_in_errors, overrides

WORD = ""  # it takes no word beside its flags
FAILED = 1
METHODS = ("grid", "random", "optuna")


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values)
    command.string("logdir", "Directory of the sweep; it holds a run for each trial.", values)
    command.strings("sweep", "path=a,b,c or path=low..high or path=log(low..high).", values)
    command.choice("search", METHODS, "How to choose the combinations.", values)
    command.integer("num_trials", "How many trials; a grid runs all.", values, lower_bound=1)
    command.integer("seed", "Seed of --search=random and optuna; 0 if left out.", values)
    command.string("metric", "input/metric of an evaluation, or a tag as loss/total.", values)
    command.choice("goal", ("min", "max"), "Which values of the metric are best.", values)
    command.integer(
        "workers", "How many trials run at a time; 1 if left out.", values, lower_bound=1
    )
    command.boolean("print", "Print the commands of the trials instead of running them.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Runs the trials; returns 0, 1 if one failed, or 128 + the signal that ended it early."""
    del word
    request = _read_request(values)
    if values.print:
        print("".join(f"{line}\n" for line in remaining_commands(request)), end="")
        return 0
    outcome = _run_trials(request, num_workers=values.workers or 1)
    if outcome.results:
        _print_results(outcome.results, request.metric)
    if outcome.signal is not None:
        return 128 + outcome.signal
    return FAILED if any(result.state == "failed" for result in outcome.results) else 0


def sweep(arguments: Sequence[str]) -> SweepOutcome:
    """Runs the trials as the command line does, without the table at the end."""
    values, _ = command.read("sweep", cast(Verb, sys.modules[__name__]), arguments)
    return _run_trials(_read_request(values), num_workers=values.workers or 1)


def _run_trials(request: SweepRequest, *, num_workers: int) -> SweepOutcome:
    program = (sys.executable, "-P", "-m", "lingo.cli.main")
    launch = functools.partial(launch_locally, program=program, num_workers=num_workers)
    show = functools.partial(print, flush=True)
    return run_sweep(request, launch=launch, num_workers=num_workers, show=show)


def _read_request(values: flags.FlagValues) -> SweepRequest:
    if not values.logdir:
        raise UsageError("no directory given: --logdir=DIR")
    if not values.sweep:
        raise UsageError("nothing to sweep: --sweep=path=a,b,c")
    if values.search != "grid" and values.num_trials is None:
        raise UsageError(f"--search={values.search} needs --num_trials=N")
    for flag in ("num_trials", "seed"):
        if values.search == "grid" and values[flag].value is not None:
            raise UsageError(f"--{flag} is for --search=random and optuna")
    axes = read_axes(values.sweep)
    point = corner_points(axes)[0]
    experiments = _Experiments(values, overrides(point))
    with name_point_in_errors(point):
        experiment = build_experiment(experiments.first)
    goal = values.goal if values["goal"].present else None
    metric = choose_metric(experiment, values.metric, goal)
    if values.metric is not None:  # a run checks the experiment's own
        check_metric(experiment, values.metric)
    return SweepRequest(
        logdir=Path(values.logdir),
        train_arguments=_shared_arguments(values),
        resolve=experiments.resolve,
        axes=axes,
        method=values.search,
        num_trials=values.num_trials or 0,
        seed=values.seed or 0,
        metric=metric,
        source=find_user_files(experiments.first.params, experiments.first.origin.file),
    )


def _shared_arguments(values: flags.FlagValues) -> tuple[str, ...]:
    """Returns the arguments of `lingo train` that all trials share."""
    experiment = f"--exp={values.exp}" if values.run is None else f"--run={values.run}"
    return (
        experiment,
        *(f"--trust={file}" for file in values.trust),
        *(f"--params_dir={directory}" for directory in values.params_dir),
        *(f"--set={override}" for override in values.set),
    )


class _Experiments:
    """Resolves the experiment of a sweep with the overrides of any trial, and of the first."""

    def __init__(self, values: flags.FlagValues, first: Sequence[str]) -> None:
        self._values, self._places = values, command.find_roots(values)
        if values.exp is None or values.run is not None:
            self._base = experiment_flags.resolve(values)
            self.first = self._choose(first)
        else:  # never without overrides: a swept value may be a required argument
            self.first = experiment_flags.resolve_name(
                values.exp, [*values.set, *first], self._places
            )

    def resolve(self, overrides: Sequence[str]) -> list[Line]:
        """Returns the resolved text with a trial's overrides; does not need TensorFlow."""
        resolved = self._choose(overrides)
        build_experiment(resolved)
        return text.resolve(resolved.params)

    def _choose(self, overrides: Sequence[str]) -> ResolvedExperiment:
        if self._values.run is None:
            every = [*self._values.set, *overrides]
            return registry.get(self._values.exp, every, self._places)
        params = self._base.params.copy()
        applied = apply(params, overrides, Classes(self._places, trust=self._values.trust))
        return ResolvedExperiment(params, self._base.origin, applied)


def _print_results(results: Sequence[Result], metric: Metric) -> None:
    for lines in filter(None, (trial_table(results, metric), seed_table(results, metric))):
        print("", *lines, sep="\n")
    print()
    best = results[0]
    if best.score is not None:
        print(f"best: {best.trial.path}, {metric.name} {best.score:.6g}\n  {best.trial.command}")
    else:
        print(f"best: none, since no trial that is done reported a finite {metric.name}")
    num_failed = sum(result.state == "failed" for result in results)
    if num_failed:
        print(f"{num_failed} of {len(results)} failed; the same command tries them again")
