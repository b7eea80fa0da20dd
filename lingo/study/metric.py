"""The number that trials are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment

TRAINING = ("loss", "learner", "perf")
"""The first parts of the tags that every run reports while it trains."""

Goal = Literal["min", "max"]


class Reading(NamedTuple):
    """A metric as a run reported it.

    Attributes:
        step: steps done.
        value: the number, or None if it was not finite.
    """

    step: int
    value: float | None


class Metric(NamedTuple):
    """A number that runs report, and which way is better.

    Attributes:
        name: `input/metric` of an evaluation, or the tag of a training report.
        goal: whether the lowest or the highest is best.
        of_best: whether a run counts by its best report, or by its last.
    """

    name: str
    goal: Goal
    of_best: bool = False

    def check(self, experiment: Experiment) -> None:
        """Checks that an experiment reports such a metric, as far as that can be known before.

        Raises:
            ParamError: if it has no such evaluation input.
        """
        head, _, rest = self.name.partition("/")
        inputs = experiment.p.eval_inputs
        if not rest or (head not in inputs and head not in TRAINING):
            there = [f"{name}/loss" for name in inputs] + ["loss/total"]
            raise ParamError(
                f"metric {self.name!r} is no input/metric of an evaluation and no tag of a"
                f" training report.{suggest(self.name, there)} There are, for example,"
                f" {' and '.join(there)}."
            )

    def read(self, rows: Iterable[Mapping[str, Any]]) -> Reading | None:
        """Returns the report of the metric that a run counts by, or None if there is none.

        Args:
            rows: of metrics.jsonl.
        """
        head, _, rest = self.name.partition("/")
        found: list[Reading] = []
        for row in rows:
            # The evaluation input that comes first in the row has the plain tag.
            tags = (self.name, f"eval/{rest}@{head}", f"eval/{rest}")
            if tag := next((tag for tag in tags if tag in row), None):
                found.append(Reading(row["step"], row[tag]))
        if not found:
            return None
        return found[self.best_first([r.value for r in found])[0] if self.of_best else -1]

    def best_first(self, values: Sequence[float | None]) -> list[int]:
        """Returns the places of some values, that of the best first, those of None last."""
        sign = 1 if self.goal == "min" else -1

        def order(place: int) -> tuple[bool, float]:
            value = values[place]
            return value is None, 0.0 if value is None else sign * value

        return sorted(range(len(values)), key=order)


def choose(experiment: Experiment, name: str | None, goal: Goal | None) -> Metric:
    """Returns the metric to compare runs of an experiment by.

    By its `evaluate.metric` runs are compared where they were best: this is what it says of them.

    Args:
        experiment: that is run.
        name: of the metric; if None, `evaluate.metric` or else a loss.
        goal: if None, `evaluate.goal` for that metric, and "min" for others.

    Raises:
        ParamError: if the experiment reports no such metric.
    """
    own = experiment.p.evaluate
    chosen: str = name or own.metric or _loss(experiment)
    if chosen == own.metric:
        metric = Metric(chosen, goal or own.goal, of_best=goal in (None, own.goal))
    else:
        metric = Metric(chosen, goal or "min")
    metric.check(experiment)
    return metric


def _loss(experiment: Experiment) -> str:
    """Returns the loss of the first evaluation input, or of training where there is none."""
    first = next(iter(experiment.p.eval_inputs), None)
    return "loss/total" if first is None else f"{first}/loss"
