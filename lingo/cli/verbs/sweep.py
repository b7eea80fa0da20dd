"""Trains an experiment many times with different values, and names the best. It resumes as a run.

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

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from absl import flags

from lingo.cli import choice, command
from lingo.cli.command import UsageError, Verb
from lingo.config import registry, text
from lingo.config.overrides import overrides as overrides_
from lingo.config.registry import Chosen
from lingo.config.roots.classes import Classes
from lingo.config.text import Line
from lingo.study import metric, plan, search, space, table, trial
from lingo.study.launch import Local
from lingo.study.metric import Metric
from lingo.study.plan import Request
from lingo.study.run import Outcome
from lingo.study.run import run as run_

WORD = ""
FAILED = 1
METHODS = ("grid", "random", "optuna")


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define(values)
    command.string("logdir", "Directory of the sweep; a run for each trial in it.", values)
    command.strings("sweep", "path=a,b,c or path=low..high or path=log(low..high).", values)
    command.choice("search", METHODS, "Which combinations are tried.", values)
    command.integer("num_trials", "How many; a grid has them all.", values, lower_bound=1)
    command.integer("seed", "Of what --search=random and optuna draw; else 0.", values)
    command.string("metric", "input/metric of an evaluation, or a tag as loss/total.", values)
    command.choice("goal", ("min", "max"), "Which values of the metric are best.", values)
    command.integer("workers", "How many trials run at a time; else 1.", values, lower_bound=1)
    command.boolean("print", "Print the commands of the trials instead of running them.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Runs the trials; returns 0, 1 if one failed, or 128 + the signal that ended it early."""
    del word
    request = _request(values)
    if values.print:
        print("".join(f"{line}\n" for line in plan.commands(request)), end="")
        return 0
    outcome = _run_trials(request, num_workers=values.workers or 1)
    _conclude(outcome, request.metric)
    if outcome.signal is not None:
        return 128 + outcome.signal
    return FAILED if any(result.state == "failed" for result in outcome.results) else 0


def sweep(arguments: Sequence[str]) -> Outcome:
    """Runs the trials as the command line does, without the table at the end.

    Args:
        arguments: flags of this verb.
    """
    values, _ = command.read("sweep", cast(Verb, sys.modules[__name__]), arguments)
    return _run_trials(_request(values), num_workers=values.workers or 1)


def _run_trials(request: Request, *, num_workers: int) -> Outcome:
    program = (sys.executable, "-P", "-m", "lingo.cli.main")
    launch = Local(program, num_workers=num_workers)
    return run_(request, launch=launch, num_workers=num_workers, show=_show)


def _show(line: str) -> None:
    print(line, flush=True)


def _request(values: flags.FlagValues) -> Request:
    if not values.logdir:
        raise UsageError("no directory given: --logdir=DIR")
    if not values.sweep:
        raise UsageError("nothing to sweep: --sweep=path=a,b,c")
    if (values.num_trials is None) != (values.search == "grid"):
        raise UsageError(
            "--num_trials is for --search=random and optuna"
            if values.num_trials
            else f"--search={values.search} needs --num_trials=N"
        )
    if values.seed is not None and values.search == "grid":
        raise UsageError("--seed is for --search=random and optuna")
    axes = space.read(values.sweep)
    first = search.corners(axes)[0]
    experiments = _Experiments(values, trial.overrides(first))
    with trial.concerning(first):
        experiment = choice.built(experiments.first)
    goal = values.goal if values["goal"].present else None
    return Request(
        logdir=Path(values.logdir),
        shared=_shared(values),
        resolve=experiments.resolve,
        axes=axes,
        method=values.search,
        num_trials=values.num_trials or 0,
        seed=values.seed or 0,
        metric=metric.choose(experiment, values.metric, goal),
    )


def _shared(values: flags.FlagValues) -> tuple[str, ...]:
    """Returns what all trials ask `lingo train` for."""
    asked = [f"--exp={values.exp}"] if values.run is None else [f"--run={values.run}"]
    asked += [f"--trust={file}" for file in values.trust]
    asked += [f"--params_dir={directory}" for directory in values.params_dir]
    return (*asked, *(f"--set={override}" for override in values.set))


class _Experiments:
    """The experiment that is swept, with whatever overrides.

    Attributes:
        first: with those of a first trial.
    """

    def __init__(self, values: flags.FlagValues, first: Sequence[str]) -> None:
        self._values, self._places = values, choice.places(values)
        if values.exp is None or values.run is not None:
            self._base = choice.chosen(values)
            self.first = self.chosen(first)
        else:  # not without overrides: what is swept may be an argument that it needs
            self.first = choice.named(values.exp, [*values.set, *first], self._places)

    def chosen(self, overrides: Sequence[str]) -> Chosen:
        """Returns it with further overrides."""
        if self._values.run is None:
            every = [*self._values.set, *overrides]
            return registry.get(self._values.exp, every, self._places)
        params = self._base.params.copy()
        applied = overrides_.apply(params, overrides, Classes(self._places))
        return Chosen(params, self._base.origin, applied)

    def resolve(self, overrides: Sequence[str]) -> list[Line]:
        """Returns its resolved text with further overrides; needs no TensorFlow."""
        chosen = self.chosen(overrides)
        choice.built(chosen)
        return text.resolve(chosen.params)


def _conclude(outcome: Outcome, by: Metric) -> None:
    """Prints the table and the best trial."""
    results = outcome.results
    if not results:
        return
    for lines in filter(None, (table.table(results, by), table.over_seeds(results, by))):
        print("", *lines, sep="\n")
    print()
    best = results[0]
    if best.score is not None:
        print(f"best: {best.trial.path}, {by.name} {best.score:.6g}\n  {best.trial.command}")
    else:
        print(f"best: none, since no trial that is done reported a finite {by.name}")
    failed = [result for result in results if result.state == "failed"]
    if failed:
        print(f"{len(failed)} of {len(results)} failed; the same command tries them again")
