"""The request of a sweep, checked before anything is done, and the files that record the sweep.

sweep.json            the request
results.json          the results so far, the best trial first
000-.../log.txt       the output of a trial's process
000-.../trial.json    the values that Optuna proposed for the trial
000-.../pruned.json   the report at which the trial was pruned
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from lingo.checkpoints import store
from lingo.config import source_record, text
from lingo.config.base.errors import LingoError
from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.config.text import Line
from lingo.storage.files import write_text
from lingo.study import search
from lingo.study.metric import Metric, Reading
from lingo.study.search import Point
from lingo.study.space import Axis
from lingo.study.trial import Trial, name_point_in_errors, overrides, trial_name
from lingo.trainer.directory.run_directory import RESOLVED, SOURCE, RunDirectory

SWEEP = "sweep.json"
RESULTS = "results.json"
TRIAL = "trial.json"
PRUNED = "pruned.json"
LOG = "log.txt"

FORMAT = 1
MAX_TRIALS = 10_000


class ChangedSweep(LingoError):
    """The directory of the requested sweep holds another sweep."""

    exit_code: ClassVar[int] = 7

    def __init__(self, path: Path, differences: Sequence[str]) -> None:
        listed = "\n  ".join(differences)
        super().__init__(
            f"{path} was begun as another sweep:\n  {listed}\nSweep in another directory."
        )


class SweepRequest(NamedTuple):
    """The request of a sweep: the experiment, the varied fields, and how points are found."""

    logdir: Path  # directory of the sweep
    train_arguments: tuple[str, ...]  # shared by all trials
    # overrides -> resolved text of the experiment; raises ParamError for every mistake
    resolve: Callable[[Sequence[str]], list[Line]]
    axes: Sequence[Axis]  # the varied fields
    method: Literal["grid", "random", "optuna"]  # how points are found
    num_trials: int  # number of trials to run; 0 for a grid, which runs every point
    seed: int  # for random and proposed points
    metric: Metric  # the number that trials are compared by
    prune: str = ""  # the rule that ends trials early, as `read_pruning` takes it; "": none
    source: Mapping[str, SourceFile] = MappingProxyType({})  # the user's own files, by name

    def trial(self, number: int, point: Point) -> Trial:
        """Returns the trial with this number that tries a point."""
        path = self.logdir / trial_name(number, point)
        sets = (f"--set={override}" for override in overrides(point))
        return Trial(
            number, point, path, ("train", *self.train_arguments, f"--logdir={path}", *sets)
        )

    def settings(self) -> dict[str, Any]:
        """Returns the content of sweep.json."""
        return {
            "format": FORMAT,
            "train": list(self.train_arguments),
            "sweep": [str(axis) for axis in self.axes],
            "search": self.method,
            "num_trials": self.num_trials,
            "seed": self.seed,
            "metric": self.metric.name,
            "goal": self.metric.goal,
            **({"prune": self.prune} if self.prune else {}),
        }


def build_points(request: SweepRequest) -> dict[int, Point]:
    """Returns trial number -> point before a sweep begins, after building each point's experiment.

    Optuna's points are not known then: corners of the space are built instead, and {} is returned.
    Raises ParamError for the first point whose experiment cannot be built, which it names, and for
    too many trials.
    """
    axes, num_trials = request.axes, request.num_trials
    if (count := num_trials or math.prod(len(axis.values) for axis in axes)) > MAX_TRIALS:
        raise ParamError(f"{count:,} trials are too many; a sweep has at most {MAX_TRIALS:,}")
    match request.method:
        case "grid":
            points = search.grid_points(axes)
        case "random":
            points = search.random_points(axes, num_trials=num_trials, seed=request.seed)
        case "optuna":
            search.import_optuna(search.SEARCH)
            points = search.corner_points(axes)
    for point in points:
        _resolve(request, point)
    return {} if request.method == "optuna" else dict(enumerate(points))


def check_settings(request: SweepRequest) -> None:
    """Checks that the directory is new or belongs to this sweep.

    Raises ChangedSweep, which lists the differences, for other axes, another method or seed, and
    another metric if Optuna proposes points by it. The trials' shared arguments may change as far
    as their runs allow it. Raises ParamError for the directory of a run, or if sweep.json does not
    describe a sweep.
    """
    if RunDirectory(request.logdir).exists:
        raise ParamError(f"{request.logdir} is the directory of a run: give the sweep its own")
    before, settings = read_json(request.logdir / SWEEP), request.settings()
    if before is None:
        return
    fixed = ["format", "sweep", "search", "seed"]
    if request.method == "optuna":
        fixed += ["metric", "goal", "prune"]
    differences = [
        f"{key}: {_setting_text(before.get(key))} -> {_setting_text(settings.get(key))}"
        for key in fixed
        if before.get(key) != settings.get(key)
    ]
    if differences:
        raise ChangedSweep(request.logdir, differences)


def find_done(request: SweepRequest, points: Mapping[int, Point]) -> set[int]:
    """Returns the numbers of the trials whose runs are done and have exactly the requested values.

    Raises ChangedSweep, which lists the differences, if a run that has begun would refuse to resume
    with its trial's values.
    """
    done = set()
    for number, point in points.items():
        trial = request.trial(number, point)
        if (before := trial.run.read(RESOLVED)) is None:
            continue
        changes = text.diff(text.read(before), _resolve(request, point))
        refused = [str(change) for change in changes if not change.operational]
        refused += [
            f"{request.source[new].path} (was: {trial.path / SOURCE / old})"
            for old, new in source_record.changed_names(trial.run.read_source(), request.source)
        ]
        if refused and store.steps(trial.run.checkpoints):  # without checkpoints it begins anew
            raise ChangedSweep(trial.path, refused)
        status = trial.run.status()
        if status is not None and status.is_done and not changes:
            done.add(number)
    return done


def remaining_trials(request: SweepRequest) -> list[Trial]:
    """Returns the trials that are not done, which another program may run. Creates nothing.

    Raises the errors of `run_sweep`, and ParamError if trials depend on earlier results.
    """
    if request.prune:
        raise ParamError(
            "--prune ends trials of a sweep that runs: leave it out, or let `lingo sweep` run them"
        )
    if request.method == "optuna":
        raise ParamError(
            "--search=optuna proposes a trial from earlier results: there are no commands to print"
        )
    points = build_points(request)
    check_settings(request)
    done = find_done(request, points)
    return [request.trial(n, point) for n, point in points.items() if n not in done]


def _resolve(request: SweepRequest, point: Point) -> list[Line]:
    with name_point_in_errors(point):
        return request.resolve(overrides(point))


def _setting_text(value: Any) -> str:
    if value is None:
        return "(absent)"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- files ---------------------------------------------------------------------------------------


def read_json(file: Path) -> dict[str, Any] | None:
    """Returns a sweep's JSON file, or None if it does not exist.

    Raises ParamError if the file is not a JSON object.
    """
    text = RunDirectory(file.parent).read(file.name)
    if text is None and not os.path.lexists(file):
        return None
    try:
        return dict(json.loads(text or ""))
    except (ValueError, TypeError, RecursionError):
        raise ParamError(f"{file} is not a file that a sweep wrote") from None


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a file. Raises StorageError if it cannot be written."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def read_pruned(trial: Trial) -> Reading | None:
    """Returns the report at which a trial was pruned, or None; raises ParamError for bad files."""
    match read_json(file := trial.path / PRUNED):
        case None:
            return None
        case {"step": int(step), "value": float() | int() | None as value}:
            return Reading(step, value)
        case _:
            raise ParamError(f"{file} is not a file that a sweep wrote")


def read_points(logdir: Path, targets: Collection[str]) -> dict[int, Point]:
    """Returns number -> point of the trials that have a trial.json.

    Raises ParamError for a file that does not hold a point with these `targets`.
    """
    points: dict[int, Point] = {}
    for file in logdir.glob(f"*/{TRIAL}"):
        match read_json(file):
            case {"number": int(number), "values": dict(values)} if set(values) == set(targets):
                points[number] = {target: str(values[target]) for target in targets}
            case _:
                raise ParamError(f"{file} is not a file that a sweep wrote")
    return points
