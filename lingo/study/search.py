"""Finds the points of the space that a sweep tries: all, random ones, or Optuna's proposals.

Grid and random points follow from the seed and the number of the trial. Optuna proposes each point
from the results of the trials before it, and keeps nothing itself.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, TypeAlias

from lingo.config.params import ParamError
from lingo.study.metric import Goal
from lingo.study.space import Axis

_REPEATS = 20  # per different point: after more repeats in a row, the space counts as used up

Point: TypeAlias = dict[str, str]
"""The target of each axis -> its value, as it would be typed."""


def grid_points(axes: Sequence[Axis]) -> list[Point]:
    """Returns every combination of lists, the last axis changing fastest."""
    for axis in axes:
        if axis.scale != "list":
            raise ParamError(
                f"{axis}: a grid needs values, as in {axis.target}={','.join(axis.values)};"
                " a range is for --search=random or optuna"
            )
    targets = [axis.target for axis in axes]
    combinations = itertools.product(*(axis.values for axis in axes))
    return [dict(zip(targets, values, strict=True)) for values in combinations]


def random_points(axes: Sequence[Axis], *, num_trials: int, seed: int) -> list[Point]:
    """Returns different points, drawn at random (Bergstra and Bengio 2012).

    A value is a function of the seed, the target of its axis and the number of the draw. So more
    trials begin with the same points, and a further axis does not change the other axes' values.
    Raises ParamError if the space has too few points.
    """
    points: dict[tuple[str, ...], Point] = {}
    repeats = 0
    for draw in itertools.count():
        if len(points) == num_trials or repeats > _REPEATS * len(points):
            break
        point = {a.target: a.draw(Random(f"{seed} {draw} {a.target}").random()) for a in axes}
        values = tuple(point.values())
        repeats = repeats + 1 if values in points else 0
        points.setdefault(values, point)
    if len(points) < num_trials:
        raise ParamError(
            f"there are not {num_trials} different trials to draw: {len(points)} were found."
            f" Lower --num_trials to {len(points)}, or sweep all by --search=grid."
        )
    return list(points.values())


def corner_points(axes: Sequence[Axis]) -> list[Point]:
    """Returns points in which each value of a list and each end of a range occurs."""
    first = {axis.target: axis.values[0] for axis in axes}
    return [first, *(first | {axis.target: v} for axis in axes for v in axis.values[1:])]


def propose_point(
    axes: Sequence[Axis], trials: Iterable[tuple[Point, float | None]], *, seed: int, goal: Goal
) -> Point:
    """Returns the point that Optuna's tree-structured Parzen estimator proposes to try next
    (Bergstra et al. 2011, sec. 4).

    `trials` are earlier points with their results. The result of a trial that is still running or
    has failed is None, which counts as a bad one. Each proposal needs another seed. Raises
    ParamError if Optuna is not installed.
    """
    optuna = import_optuna()
    # Its notices about every trial would stand between the lines of the sweep.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction=f"{goal}imize")
    distributions = {axis.target: _distribution(axis, optuna) for axis in axes}
    for point, value in trials:
        state = "RUNNING" if value is None else "COMPLETE"
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                value=value,
                params={axis.target: _parse_value(axis, point[axis.target]) for axis in axes},
                distributions=distributions,
            )
        )
    values = study.ask(distributions).params
    return {
        axis.target: values[axis.target]
        if axis.scale == "list"
        else axis.format_number(values[axis.target])
        for axis in axes
    }


def import_optuna() -> Any:
    """Returns the package; raises ParamError if it is not installed."""
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ParamError(
            "--search=optuna needs Optuna, which is not installed: pip install 'lingo-tf[sweep]'"
        ) from None


def _distribution(axis: Axis, optuna: Any) -> Any:
    if axis.scale == "list":
        return optuna.distributions.CategoricalDistribution(axis.values)
    kind = "IntDistribution" if axis.is_integer else "FloatDistribution"
    low, high = (_parse_value(axis, end) for end in axis.values)
    return getattr(optuna.distributions, kind)(low, high, log=axis.scale == "log")


def _parse_value(axis: Axis, text: str) -> str | int | float:
    """Returns a value as Optuna takes it."""
    if axis.scale == "list":
        return text
    return int(text) if axis.is_integer else float(text)
