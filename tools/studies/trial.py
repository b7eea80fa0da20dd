"""A trial of a study, its result, and the file that keeps results.

A study takes hours, so each result becomes a line of `docs/results/<study>.jsonl` as soon as there
is one. A line has the digests of the trained configuration and of the configurations it starts
from. A line whose digest has changed does not count, and its trial runs again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.config import registry, serial
from lingo.config.params import ParamError, fields
from lingo.contract import Experiment, build_experiment
from lingo.storage import files

PRETRAINED = "/PRETRAINED"
"""Stands in an override for the directory of the run of `Trial.start`."""

SEEDS = (0, 1, 2)

State = Literal["done", "diverged"]

_MODULE = re.compile(r'(?<="@": ")[\w.]+:')
_NAME_CHARACTERS = 12


class Trial(NamedTuple):
    """A training."""

    experiment: str  # as `--exp` takes it
    seed: int = 0
    overrides: tuple[str, ...] = ()  # as `--set` takes them
    start: Trial | None = None  # whose weights it begins with, in overrides with `PRETRAINED`

    @property
    def settings(self) -> list[str]:
        """All of its overrides."""
        return [*self.overrides, f"seed={self.seed}"]

    @property
    def name(self) -> str:
        """The name of its run's directory: another one if its configuration changes."""
        content = repr((self, identity(self)))
        return hashlib.sha256(content.encode()).hexdigest()[:_NAME_CHARACTERS]

    def arguments(self, folder: Path) -> list[str]:
        """Returns the arguments of `lingo` that train it, in its own directory in a folder."""
        start = "" if self.start is None else str(folder / self.start.name)
        settings = [setting.replace(PRETRAINED, start) for setting in self.settings]
        return [
            "train",
            f"--exp={self.experiment}",
            *(f"--set={setting}" for setting in settings),
            f"--logdir={folder / self.name}",
        ]


def over_seeds(trial: Trial) -> list[Trial]:
    """Returns a trial with each of the seeds."""
    return [trial._replace(seed=seed) for seed in SEEDS]


def over_seeds_of_both(trial: Trial) -> list[Trial]:
    """Returns a trial with each of the seeds; its start has the same seed."""
    return [
        trial._replace(seed=seed, start=trial.start and trial.start._replace(seed=seed))
        for seed in SEEDS
    ]


@functools.cache
def configuration_digest(trial: Trial) -> str:
    """Returns the digest of the parameters that a trial sets, except how it is run.

    Parameters that keep their default do not count, so a new one changes nothing. The file that a
    class is in does not count either. Raises ParamError if there is no such experiment.
    """
    resolved = registry.get(trial.experiment, trial.settings)
    build_experiment(resolved)
    saved = json.loads(serial.dump(resolved.params, resolved.origin, ""))["params"]
    of_run = {name for name, field in fields(Experiment).items() if field.operational}
    of_result = {k: v for k, v in saved.items() if k not in of_run - {"max_steps"}}
    content = _MODULE.sub("", json.dumps(of_result, sort_keys=True))
    return hashlib.sha256(content.encode()).hexdigest()


def identity(trial: Trial) -> tuple[str, ...]:
    """Returns the key of a trial's result: trials with equal keys are one training with two names.

    It has the digests of the trial's configuration and of the configurations it starts from.
    """
    return (configuration_digest(trial), *(identity(trial.start) if trial.start else ()))


class Result(NamedTuple):
    """What came of a trial."""

    trial: Trial
    digest: tuple[str, ...]  # its `identity` when it started
    state: State  # "diverged": it stopped, since its loss or gradient was not finite
    step: int  # of the last evaluation; 0: there was none
    metrics: dict[str, float]  # of that evaluation, by TensorBoard tag
    seconds: float  # of its processes, from start to end: a resumed training has several
    commit: str  # of lingo

    def line(self) -> str:
        """Returns it as a line of a file of results."""
        return json.dumps(self._asdict() | {"trial": _trial_fields(self.trial)}) + "\n"


class Results:
    """The results of a study, and their file."""

    def __init__(self, path: Path) -> None:
        """Reads the results whose configuration is still the same, from a file if there is one."""
        self._path = path
        self._results: dict[tuple[str, ...], Result] = {}
        self.stale: list[Result] = []  # whose configuration has changed, or is gone
        for result in _read(path):
            if _is_current(result):
                self._results[result.digest] = result
            else:
                self.stale.append(result)

    def get(self, trial: Trial) -> Result | None:
        """Returns the result of a trial, if there is one."""
        return self._results.get(identity(trial))

    def metric(self, trial: Trial, tag: str) -> float | None:
        """Returns a metric of a trial, or None if it is not done, or diverged."""
        result = self.get(trial)
        return result.metrics.get(tag) if result and result.state == "done" else None

    def add(self, result: Result) -> None:
        """Adds a result, and appends a line to the file. Lines of other processes stay.

        Raises StorageError if the file cannot be written; it is as it was.
        """
        self._results[result.digest] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        files.append(self._path, result.line().encode())
        files.sync(self._path)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())


def _is_current(result: Result) -> bool:
    try:
        return result.digest == identity(result.trial)
    except ParamError:  # its experiment has another name now, or is gone
        return False


def _read(path: Path) -> Iterable[Result]:
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        values = json.loads(line)
        trial, digest = _read_trial(values["trial"]), tuple(values["digest"])
        yield Result(**values | {"trial": trial, "digest": digest})


def _trial_fields(trial: Trial) -> dict[str, Any]:
    start = trial.start and _trial_fields(trial.start)
    return trial._asdict() | {"start": start}


def _read_trial(values: dict[str, Any]) -> Trial:
    start = values["start"] and _read_trial(values["start"])
    return Trial(**values | {"overrides": tuple(values["overrides"]), "start": start})
