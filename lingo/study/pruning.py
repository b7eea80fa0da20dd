"""Pruning ends a trial early if its reports so far are worse than other trials' (Optuna's pruners).

    median                         worse than the median of the trials that are done, at this step
    median(trials=3, steps=100)    not before three trials are done, nor before step 100
    halving                        of the trials that reach a rung, the best quarter continues
    halving(steps=100, factor=2)   rungs at steps 100, 200, 400, ...; the best half continues

A verdict follows from reports alone, in the order of their steps. So a sweep that was interrupted
gives the same verdicts when it is resumed, if one trial runs at a time. With several, the verdict
on a report also depends on what the other trials have reported by then.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from lingo.config.params import ParamError, suggest
from lingo.study.metric import Goal, Reading
from lingo.study.search import import_optuna
from lingo.study.trial import State

_TEXT = re.compile(r"(\w+)(?:\((.*)\))?")
_NUMBER = re.compile(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*")
_KINDS = {  # name -> (Optuna's class, {argument: Optuna's argument})
    "median": ("MedianPruner", {"trials": "n_startup_trials", "steps": "n_warmup_steps"}),
    "halving": (
        "SuccessiveHalvingPruner",
        {"steps": "min_resource", "factor": "reduction_factor"},
    ),
}


class Pruning(NamedTuple):
    """A rule that prunes: the name of Optuna's class, and its arguments."""

    name: str
    arguments: dict[str, int]


def read_pruning(text: str) -> Pruning:
    """Returns a rule from a text such as "median" or "halving(steps=100)"; raises ParamError."""
    match = _TEXT.fullmatch(text)
    if match is None or match[1] not in _KINDS:
        near = suggest(match[1] if match else text, _KINDS)
        raise ParamError(
            f"--prune={text} is no rule.{near} There are median, median(trials=5, steps=100),"
            " halving and halving(steps=100, factor=4)."
        )
    name, names = _KINDS[match[1]]
    arguments: dict[str, int] = {}
    for part in (match[2] or "").split(",") if match[2] else ():
        given = _NUMBER.fullmatch(part)
        if given is None or given[1] not in names or names[given[1]] in arguments:
            raise ParamError(
                f"--prune={text}: {part.strip()!r} is no argument of {match[1]}: write"
                f" {' or '.join(f'{argument}=N' for argument in names)}, N at least 1"
            )
        arguments[names[given[1]]] = int(given[2])
    if arguments.get("reduction_factor") == 1:
        raise ParamError(f"--prune={text}: factor=1 prunes nothing: write at least factor=2")
    return Pruning(name, arguments)


class Pruner:
    """Judges the reports of a sweep's trials, which Optuna keeps in memory."""

    def __init__(self, pruning: Pruning, goal: Goal) -> None:
        """Raises ParamError if Optuna is not installed."""
        self._optuna = import_optuna("--prune")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        pruner = getattr(self._optuna.pruners, pruning.name)(**pruning.arguments)
        sampler = self._optuna.samplers.RandomSampler(seed=0)  # proposes nothing
        self._study = self._optuna.create_study(
            direction=f"{goal}imize", pruner=pruner, sampler=sampler
        )
        self._trials: dict[int, Any] = {}  # number -> Optuna's object
        self._reports: dict[int, dict[int, float]] = {}  # number -> step -> value
        self._verdicts: dict[int, Reading] = {}  # number -> the report that prunes the trial

    def judge(self, number: int, readings: Iterable[Reading]) -> Reading | None:
        """Judges a trial's new reports; returns the one that prunes it, or None.

        `readings` are all reports so far, in the order of their steps. After a verdict no more
        reports count.
        """
        if number not in self._trials:
            self._trials[number], self._reports[number] = self._study.ask(), {}
        trial, reports = self._trials[number], self._reports[number]
        for reading in readings:
            if number not in self._verdicts and reading.step > max(reports, default=-1):
                value = float("nan") if reading.value is None else reading.value
                reports[reading.step] = value
                trial.report(value, reading.step)
                if self._should_prune(trial):
                    self._verdicts[number] = reading
        return self._verdicts.get(number)

    def _should_prune(self, trial: Any) -> bool:
        with warnings.catch_warnings():  # NumPy warns if all reports of a trial are NaN
            warnings.simplefilter("ignore", RuntimeWarning)
            return trial.should_prune()

    def end(self, number: int, state: State, value: float | None) -> None:
        """Tells how a trial has ended; later trials are compared with it."""
        trial = self._trials.pop(number, None) or self._study.ask()
        if state == "done" and value is not None:
            self._study.tell(trial, value)
        else:
            ends = self._optuna.trial.TrialState
            self._study.tell(trial, state=ends.PRUNED if state == "pruned" else ends.FAIL)

    def pruned_reports(self) -> dict[int, dict[int, float]]:
        """Returns the reports, {step: value}, of each trial that is pruned, by its number."""
        return {number: self._reports[number] for number in self._verdicts}
