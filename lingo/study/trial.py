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

State = Literal["done", "failed", "stopped"]


class Trial(NamedTuple):
    """A run with its own values."""

    number: int  # 0, 1, ...
    point: Point  # its values
    path: Path  # of its directory
    arguments: tuple[str, ...]  # its command line, which begins with `train`

    @property
    def run(self) -> RunDirectory:
        """Its directory."""
        return RunDirectory(self.path)

    @property
    def command(self) -> str:
        """The command line, as a person would type it."""
        return shlex.join(("lingo", *self.arguments))


class Result(NamedTuple):
    """The result of a trial."""

    trial: Trial
    state: State  # done, failed, or stopped by a signal to the sweep
    value: float | None  # of the metric; None if the run did not report it, or it is not finite
    step: int | None  # number of steps done when it was last reported; None if never
    exit_code: int | None = None  # of its process; None if it was done before
    seconds: float | None = None  # that its process took; None if it was done before

    @property
    def score(self) -> float | None:
        """The value that the trial is compared by; None unless its run is done."""
        return self.value if self.state == "done" else None


def sort_results(results: Iterable[Result], metric: Metric) -> list[Result]:
    """Returns results, the best first, results without a score last."""
    return sorted(results, key=lambda result: metric.rank(result.score))


def overrides(point: Point) -> list[str]:
    """Returns a point as `--set` takes it."""
    return [f"{target}={value}" for target, value in point.items()]


@contextlib.contextmanager
def name_point_in_errors(point: Point) -> Iterator[None]:
    """Names a point in a ParamError that is raised inside."""
    try:
        yield
    except ParamError as error:
        raise ParamError(f"trial {' '.join(overrides(point))}: {error}") from None


def trial_name(number: int, point: Point) -> str:
    """Returns the name of a trial: its number and its values, short and fit for a path.

    >>> trial_name(3, {"optimizer.learning_rate": "1e-3", "FeedForward.activation": "gelu"})
    '003-learning_rate-1e-3-activation-gelu'
    """
    parts = [f"{number:03d}"]
    for target, value in point.items():
        parts += [last_word(target), _path_safe(value)[:_VALUE_CHARACTERS]]
    return "-".join(filter(None, parts))[:_NAME_CHARACTERS].rstrip("-._")


def last_word(target: str) -> str:
    """Returns the last word of an override's left side, which is enough where space is short."""
    match = _LAST_WORD.search(target)
    return match[1] if match else _path_safe(target)


def _path_safe(text: str) -> str:
    return _UNSAFE.sub("_", text).strip("_")
