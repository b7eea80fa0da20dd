"""A run's best evaluations; whether `evaluate.reach` or `evaluate.patience` ends the run.

Everything is computed from the rows of metrics.jsonl. This file survives any crash, and a resume
that removes rows also removes their effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.config.base.errors import note_line
from lingo.config.node.build import set_line
from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment
from lingo.trainer.directory.run_directory import RunDirectory, row_tag

BEST: Literal["best"] = "best"
"""Requests the best checkpoint where a step may be given."""


class Score(NamedTuple):
    """The value of `evaluate.metric` at a step; None if it was not finite."""

    step: int
    value: float | None


class Ranking(NamedTuple):
    """The scores of a run's evaluations by one metric."""

    scores: tuple[Score, ...]  # sorted by step
    goal: Literal["min", "max"] = "min"
    patience: int | None = None  # evaluations without a new best after which the run ends
    reach: float | None = None  # a score that ends the run

    def steps_best_first(self) -> list[int]:
        """Returns the steps with finite scores, best first, earlier first among equal scores."""
        sign = 1 if self.goal == "min" else -1
        finite = [(sign * s.value, s.step) for s in self.scores if s.value is not None]
        return [step for _, step in sorted(finite)]

    def since_best(self) -> int:
        """Returns how many evaluations came after the best; all, if no score is finite."""
        best = self.steps_best_first()[:1]
        return sum(not best or score.step > best[0] for score in self.scores)

    @property
    def has_stopped_improving(self) -> bool:
        """Whether the last `patience` evaluations in a row brought no new best score."""
        return self.patience is not None and self.since_best() >= self.patience

    @property
    def has_reached(self) -> bool:
        """Whether a score is at least as good as `reach`."""
        if self.reach is None:
            return False
        finite = [score.value for score in self.scores if score.value is not None]
        is_min = self.goal == "min"
        return any(v <= self.reach if is_min else v >= self.reach for v in finite)

    @property
    def ends_run(self) -> bool:
        """Whether the run needs no further step."""
        return self.has_reached or self.has_stopped_improving


def ranking(experiment: Experiment, rows: Iterable[Mapping[str, Any]]) -> Ranking:
    """Returns the ranking of a run's evaluations; it is empty without `evaluate.metric`.

    If metrics.jsonl has two rows for a step, the later one counts.
    """
    p = experiment.p.evaluate
    if p.metric is None:
        return Ranking(())
    name, _, metric = p.metric.partition("/")
    tag = row_tag(f"eval/{metric}", name, first=name == next(iter(experiment.eval_inputs)))
    values = {row["step"]: row[tag] for row in rows if tag in row}
    scores = tuple(
        Score(step, value if value is not None and math.isfinite(value) else None)
        for step, value in sorted(values.items())
    )
    return Ranking(scores, p.goal, p.patience, p.reach)


def describe_end(experiment: Experiment, ranking: Ranking) -> str:
    """Returns a text on why a run's evaluations have ended the run."""
    p = experiment.p.evaluate
    if ranking.has_reached:
        return f"{p.metric} has reached {p.reach}: evaluate.reach."
    return f"The last {p.patience} evaluations had no better {p.metric}: evaluate.patience."


def check_metric(experiment: Experiment, results: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ParamError if results, input -> {metric: value}, lack `evaluate.metric`."""
    p = experiment.p.evaluate
    if p.metric is None:
        return
    name, _, metric = p.metric.partition("/")
    if metric not in (there := results[name]):
        error = ParamError(
            f"evaluate.metric={p.metric!r}: evaluating {name!r} gives no"
            f" {metric!r}.{suggest(metric, there)} It gives: {', '.join(there) or 'nothing'}."
        )
        note_line(error, set_line(experiment.p, "evaluate", "metric"))
        raise error


def best_steps(
    experiment: Experiment, run: RunDirectory, *, uploaded: Collection[int] = ()
) -> list[int]:
    """Returns the steps of the best existing checkpoints, at most `checkpoint.keep_best`.

    Checkpoints exist in the run's directory, or, at the steps `uploaded`, in its bucket.
    """
    if not experiment.p.checkpoint.keep_best:
        return []
    there = {*store.steps(run.checkpoints), *uploaded}
    best = [
        step for step in ranking(experiment, run.metrics.read()).steps_best_first() if step in there
    ]
    return best[: experiment.p.checkpoint.keep_best]


def choose(
    experiment: Experiment,
    run: RunDirectory,
    step: int | Literal["best"] | None,
    *,
    unreadable: Sequence[DamagedCheckpoint] = (),
) -> Checkpoint:
    """Returns a sound checkpoint: of a step, the "best" by `evaluate.metric`, or the latest.

    `unreadable` is as for `store.latest`.
    """
    if step == "best":
        step = _best_step(experiment, run)
    return store.find(run.checkpoints, step, of=run.path, unreadable=unreadable)


def _best_step(experiment: Experiment, run: RunDirectory) -> int:
    metric = experiment.p.evaluate.metric
    if metric is None:
        raise ParamError(
            f"step='best': nothing says which checkpoint of {run.path} is best;"
            " set evaluate.metric, such as 'heldout/loss'"
        )
    steps = ranking(experiment, run.metrics.read()).steps_best_first()
    if not steps:
        raise NoUsableCheckpoint(f"{run.path} has not been evaluated by {metric} yet.")
    return steps[0]
