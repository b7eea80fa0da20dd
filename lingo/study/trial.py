"""A trial: a point of the space, and the run in a directory of its own that tries it."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from lingo.config.params import ParamError
from lingo.study.metric import Metric
from lingo.study.search import Point
from lingo.trainer.directory.run_directory import RunDirectory

LOG = "log.txt"

_NAME_CHARACTERS = 64  # what `PATH_PART` allows
_VALUE_CHARACTERS = 20
_KEY = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])*$")
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")

State = Literal["done", "failed", "stopped"]


class Trial(NamedTuple):
    """A run to be made.

    Attributes:
        number: 0, 1, ...
        point: what is special about it.
        path: of its directory.
        arguments: the command line that makes it, which begins with `train`.
    """

    number: int
    point: Point
    path: Path
    arguments: tuple[str, ...]

    @property
    def run(self) -> RunDirectory:
        """Its directory."""
        return RunDirectory(self.path)

    @property
    def command(self) -> str:
        """The command line, as a person would type it."""
        return shlex.join(("lingo", *self.arguments))


class Result(NamedTuple):
    """What came of a trial.

    Attributes:
        trial: which.
        state: done, failed, or stopped by a signal to the sweep.
        value: of the metric; None if the run did not report it, or it is not finite.
        step: steps done when it was last reported; None if never.
        exit_code: of its process; None if it was done before.
    """

    trial: Trial
    state: State
    value: float | None
    step: int | None
    exit_code: int | None = None

    @property
    def score(self) -> float | None:
        """The value if it counts: that of a run that is done."""
        return self.value if self.state == "done" else None


def ranked(results: Sequence[Result], metric: Metric) -> list[Result]:
    """Returns results, the best first, those that do not count last."""
    return [results[place] for place in metric.best_first([r.score for r in results])]


def trial(number: int, point: Point, *, logdir: Path, shared: Sequence[str]) -> Trial:
    """Returns a trial.

    Args:
        number: of the trial.
        point: its values.
        logdir: directory of the sweep.
        shared: what all trials ask for: arguments of `train`.
    """
    path = logdir / name(number, point)
    sets = (f"--set={override}" for override in overrides(point))
    return Trial(number, point, path, ("train", *shared, f"--logdir={path}", *sets))


def overrides(point: Point) -> list[str]:
    """Returns a point as `--set` takes it."""
    return [f"{target}={value}" for target, value in point.items()]


@contextlib.contextmanager
def concerning(point: Point) -> Iterator[None]:
    """Names a point in the errors about its values that are raised inside."""
    try:
        yield
    except ParamError as error:
        raise ParamError(f"trial {' '.join(overrides(point))}: {error}") from None


def name(number: int, point: Point) -> str:
    """Returns the name of a trial: its number and its values, short and fit for a path.

    >>> name(3, {"optimizer.learning_rate": "1e-3", "FeedForward.activation": "gelu"})
    '003-learning_rate-1e-3-activation-gelu'
    """
    parts = [f"{number:03d}"]
    for target, value in point.items():
        parts += [key(target), _safe(value)[:_VALUE_CHARACTERS]]
    return "-".join(filter(None, parts))[:_NAME_CHARACTERS].rstrip("-._")


def key(target: str) -> str:
    """Returns the last word of an override's left side, which is enough where space is short."""
    match = _KEY.search(target)
    return match[1] if match else _safe(target)


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text).strip("_")
