"""The number that trials are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment
from lingo.trainer.evaluation.evaluate import trace_evaluations

TRAINING = ("loss", "learner", "perf")
"""The first parts of the tags that every run reports while it trains."""

Goal = Literal["min", "max"]


class Reading(NamedTuple):
    """A metric's value in one report of a run."""

    step: int  # number of steps done
    value: float | None  # the reported number; None if it was not finite


class Metric(NamedTuple):
    """A number that runs report, and whether lower or higher is better."""

    name: str  # `input/metric` of an evaluation, or the tag of a training report
    goal: Goal  # "min": the lowest value is best; "max": the highest
    best_report: bool = False  # whether a run is compared by its best report; else by its last

    def read(self, rows: Iterable[Mapping[str, Any]]) -> Reading | None:
        """Returns the report by which a run is compared, or None if no report has the metric.

        `rows` are the rows of the run's metrics.jsonl.
        """
        readings = self.read_all(rows)
        if readings and self.best_report:
            return min(readings, key=lambda reading: self.rank(reading.value))
        return readings[-1] if readings else None

    def read_all(self, rows: Iterable[Mapping[str, Any]]) -> list[Reading]:
        """Returns all reports of the metric in the rows of a run's metrics.jsonl."""
        head, _, rest = self.name.partition("/")
        # The experiment's first evaluation input has the tag without an input's name.
        tags = (self.name, f"eval/{rest}@{head}", f"eval/{rest}")
        readings: list[Reading] = []
        for row in rows:
            if reported := [tag for tag in tags if tag in row]:
                readings.append(Reading(row["step"], row[reported[0]]))
        return readings

    def rank(self, value: float | None) -> tuple[bool, float]:
        """Returns a sort key: the best value comes first, None last."""
        if value is None:
            return True, 0.0
        return False, value if self.goal == "min" else -value


def choose_metric(experiment: Experiment, name: str | None, goal: Goal | None) -> Metric:
    """Returns the metric to compare runs of an experiment by.

    If `name` is None, the metric is the first of these that exists: `evaluate.metric`, the loss of
    the first evaluation input, the training loss. If `goal` is None, it is `evaluate.goal` for
    `evaluate.metric`, and "min" for other metrics. With `evaluate.metric` and `evaluate.goal`, runs
    are compared by their best report. Raises ParamError if the experiment reports no such metric.
    """
    own, names = experiment.p.evaluate, experiment.evaluation_names
    losses = [f"{input_name}/loss" for input_name in names] + ["loss/total"]
    tag: str = name or own.metric or losses[0]
    head, _, rest = tag.partition("/")
    if not rest or (head not in names and head not in TRAINING):
        raise ParamError(
            f"metric {tag!r} is not input/metric of an evaluation, nor a tag of a training"
            f" report.{suggest(tag, losses)} There are, for example, {' and '.join(losses)}."
        )
    if tag == own.metric:
        return Metric(tag, goal or own.goal, best_report=goal in (None, own.goal))
    return Metric(tag, goal or "min")


def check_metric(experiment: Experiment, name: str) -> None:
    """Raises ParamError for an `input/metric` that evaluations do not report.

    The evaluations are traced, so that no sweep trains for a metric that is never reported.
    """
    head, _, rest = name.partition("/")
    if head not in experiment.evaluation_names or rest == "loss":
        return
    for input in experiment.eval_inputs.values():
        input.prepare()
    there = trace_evaluations(experiment)[head]
    if rest not in there:
        raise ParamError(
            f"metric {name!r}: evaluating {head!r} gives no {rest!r}.{suggest(rest, there)} It"
            f" gives: {', '.join(there) or 'nothing'}."
        )
