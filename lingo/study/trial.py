"""A trial: a point of the space, and the run that tries it in its own directory."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from lingo.config.params import ParamError
from lingo.study.metric import Metric
from lingo.study.search import Point
from lingo.trainer.directory.run_directory import RunDirectory

_NAME_CHARACTERS = 64  # as `PATH_PART` allows
_VALUE_CHARACTERS = 20
_LAST_WORD = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])*$")
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")

State = Literal["done", "pruned", "failed", "stopped"]


class Trial(NamedTuple):
    """A run of a sweep, with its own values of the varied fields."""

    number: int  # 0, 1, ...
    point: Point  # the run's values
    path: Path  # the run's directory
    arguments: tuple[str, ...]  # the run's command line, which begins with `train`

    @property
    def run(self) -> RunDirectory:
        """The run's directory, as an object that reads and writes it."""
        return RunDirectory(self.path)

    @property
    def command(self) -> str:
        """The command line, as a person would type it."""
        return shlex.join(("lingo", *self.arguments))


class Result(NamedTuple):
    """The result of a trial."""

    trial: Trial
    state: State  # done, pruned, failed, or stopped by a signal to the sweep
    value: float | None  # the metric's value; None if it was not reported, or is not finite
    step: int | None  # number of steps done at the report of `value`; None without a report
    exit_code: int | None = None  # of the trial's process; None if the trial was done before
    seconds: float | None = None  # time of the trial's process; None if the trial was done before

    @property
    def score(self) -> float | None:
        """The value that the trial is compared by; None if its run is not done."""
        return self.value if self.state == "done" else None


def sort_results(results: Iterable[Result], metric: Metric) -> list[Result]:
    """Returns results sorted by score: the best first, results without a score last."""
    return sorted(results, key=lambda result: metric.rank(result.score))


def overrides(point: Point) -> list[str]:
    """Returns a point's values as arguments of `--set`."""
    return [f"{target}={value}" for target, value in point.items()]


@contextlib.contextmanager
def name_point_in_errors(point: Point) -> Iterator[None]:
    """Adds the point to the message of a ParamError that is raised in the body."""
    try:
        yield
    except ParamError as error:
        raise ParamError(f"trial {' '.join(overrides(point))}: {error}") from None


def trial_name(number: int, point: Point) -> str:
    """Returns the name of a trial's directory: its number and its values, shortened.

    >>> trial_name(3, {"optimizer.learning_rate": "1e-3", "FeedForward.activation": "gelu"})
    '003-learning_rate-1e-3-activation-gelu'
    """
    parts = [f"{number:03d}"]
    for target, value in point.items():
        parts += [last_word(target), _path_safe(value)[:_VALUE_CHARACTERS]]
    return "-".join(filter(None, parts))[:_NAME_CHARACTERS].rstrip("-._")


def last_word(target: str) -> str:
    """Returns the last word of an override's left side, as a short name for names and tables."""
    match = _LAST_WORD.search(target)
    return match[1] if match else _path_safe(target)


def _path_safe(text: str) -> str:
    return _UNSAFE.sub("_", text).strip("_")
