"""Chooses the points that a sweep tries: the whole grid, random points, or Optuna's proposals.

A point has a value for each varied field. Grid and random points follow from the seed and the
trial's number. Optuna proposes each point from the results of earlier trials, and is given all of
them each time: it keeps nothing itself.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from lingo.config.params import ParamError
from lingo.study.metric import Goal
from lingo.study.space import Axis

# Repeated draws in a row, per different point found, after which the space counts as used up.
_REPEATS = 20

SEARCH = "--search=optuna"
"""The option that needs Optuna."""

Point: TypeAlias = dict[str, str]
"""The target of each axis -> its value, as it would be typed."""


class TriedPoint(NamedTuple):
    """A point that was proposed before, with its results."""

    point: Point
    value: float | None  # None: the trial is still running, has failed, or was pruned
    reports: Mapping[int, float] = MappingProxyType({})  # step -> value, of a pruned trial


def grid_points(axes: Sequence[Axis]) -> list[Point]:
    """Returns every combination of the axes' values; the last axis changes fastest."""
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

    A value depends only on the seed, the axis's target and the draw's number. So a sweep of more
    trials begins with the same points, and another axis does not change the values of the existing
    axes. Raises ParamError if the space has fewer points than `num_trials`.
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
    """Returns a few points in which each value of a list and each end of a range occurs."""
    first = {axis.target: axis.values[0] for axis in axes}
    return [first, *(first | {axis.target: v} for axis in axes for v in axis.values[1:])]


def propose_point(
    axes: Sequence[Axis], trials: Iterable[TriedPoint], *, seed: int, goal: Goal
) -> Point:
    """Returns the point that Optuna's tree-structured Parzen estimator proposes to try next
    (Bergstra et al. 2011, sec. 4).

    A trial without a value counts as bad, and a pruned one by its last report. Each proposal needs
    another seed. Raises ParamError if Optuna is not installed.
    """
    optuna = import_optuna(SEARCH)
    # Optuna's notices about every trial would stand between the lines of the sweep.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction=f"{goal}imize")
    distributions = {axis.target: _distribution(axis, optuna) for axis in axes}
    for point, value, reports in trials:
        ended = "PRUNED" if reports else "RUNNING"
        state = ended if value is None else "COMPLETE"
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                value=value,
                intermediate_values=dict(reports),
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


def import_optuna(option: str) -> Any:
    """Returns the package `optuna`; raises ParamError, which names `option`, if it is missing."""
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ParamError(
            f"{option} needs Optuna, which is not installed: pip install 'lingo-tf[sweep]'"
        ) from None


def _distribution(axis: Axis, optuna: Any) -> Any:
    if axis.scale == "list":
        return optuna.distributions.CategoricalDistribution(axis.values)
    kind = "IntDistribution" if axis.is_integer else "FloatDistribution"
    low, high = (_parse_value(axis, end) for end in axis.values)
    return getattr(optuna.distributions, kind)(low, high, log=axis.scale == "log")


def _parse_value(axis: Axis, text: str) -> str | int | float:
    """Returns an axis's value, given as text, in the type that Optuna expects."""
    if axis.scale == "list":
        return text
    return int(text) if axis.is_integer else float(text)
