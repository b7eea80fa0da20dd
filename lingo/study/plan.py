"""What a sweep is asked to do, checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lingo.checkpoints import store
from lingo.config import text
from lingo.config.params import ParamError
from lingo.config.text import Line
from lingo.study import search, study
from lingo.study.directory import FORMAT, SweepDirectory, changed
from lingo.study.metric import Metric
from lingo.study.search import Point
from lingo.study.space import Axis
from lingo.study.trial import Trial, concerning, overrides
from lingo.study.trial import trial as trial_
from lingo.trainer.directory.resume import RESOLVED

Method = Literal["grid", "random", "optuna"]


class Request(NamedTuple):
    """What to sweep.

    Attributes:
        logdir: directory of the sweep.
        shared: arguments of `train` that all trials share.
        resolve: overrides -> resolved text of the experiment with them. Raises ParamError for every
            mistake; needs no TensorFlow.
        axes: what is varied.
        method: how points are searched.
        num_trials: how many; 0 for a grid, which has as many as it has.
        seed: of what is drawn.
        metric: what trials are compared by.
    """

    logdir: Path
    shared: tuple[str, ...]
    resolve: Callable[[Sequence[str]], list[Line]]
    axes: Sequence[Axis]
    method: Method
    num_trials: int
    seed: int
    metric: Metric

    def trial(self, number: int, point: Point) -> Trial:
        """Returns the trial of a point."""
        return trial_(number, point, logdir=self.logdir, shared=self.shared)

    def asked(self) -> dict[str, Any]:
        """Returns the content of sweep.json."""
        return {
            "format": FORMAT,
            "train": list(self.shared),
            "sweep": [str(axis) for axis in self.axes],
            "search": self.method,
            "num_trials": self.num_trials,
            "seed": self.seed,
            "metric": self.metric.name,
            "goal": self.metric.goal,
        }

    def fixed(self) -> tuple[str, ...]:
        """Returns the keys of sweep.json that may not change.

        What all trials share may, as far as their runs allow it; the metric, where it only ranks.
        """
        always = ("sweep", "search", "seed")
        return (*always, "metric", "goal") if self.method == "optuna" else always


def checked(request: Request) -> list[Point]:
    """Returns the points that are known before a sweep begins, each of them built.

    Optuna's are not; there it is those that stand for them.

    Raises:
        ParamError: for the first that cannot be built, naming it.
    """
    match request.method:
        case "grid":
            points = search.grid(request.axes)
        case "random":
            points = search.random(request.axes, num_trials=request.num_trials, seed=request.seed)
        case "optuna":
            study.optuna()
            search.check_size(request.num_trials)
            points = search.corners(request.axes)
    for point in points:
        _resolved(request, point)
    return points


def check_begun(request: Request, points: Iterable[Point]) -> None:
    """Refuses a sweep of whose trials one would be refused by its run.

    Args:
        request: what to sweep.
        points: of the trials 0, 1, ...

    Raises:
        ChangedSweep: with each difference to the run that was begun.
    """
    for number, point in enumerate(points):
        trial = request.trial(number, point)
        refused = [str(c) for c in _changes(request, trial) if not c.operational]
        if refused and store.steps(trial.run.checkpoints):  # else it begins anew
            raise changed(trial.path, refused)


def is_done(request: Request, trial: Trial) -> bool:
    """Returns whether a trial's run is done, and asked for exactly as it was."""
    status = trial.run.status()
    return status is not None and status.is_done and not _changes(request, trial)


def commands(request: Request) -> list[str]:
    """Returns the command lines of the trials that are not done. Creates nothing.

    Raises:
        ParamError, ChangedSweep: as `run`; and if the trials cannot be known before others end.
    """
    if request.method == "optuna":
        raise ParamError("--search=optuna finds the next trial from the last: it has none to print")
    points = checked(request)
    SweepDirectory(request.logdir).check(request.asked(), fixed=request.fixed())
    check_begun(request, points)
    trials = (request.trial(number, point) for number, point in enumerate(points))
    return [trial.command for trial in trials if not is_done(request, trial)]


def _resolved(request: Request, point: Point) -> list[Line]:
    with concerning(point):
        return request.resolve(overrides(point))


def _changes(request: Request, trial: Trial) -> list[text.Change]:
    """Returns the fields in which a trial's run differs from what is asked for."""
    before = trial.run.read(RESOLVED)
    if before is None:
        return []
    return text.diff(text.read(before), _resolved(request, trial.point))
