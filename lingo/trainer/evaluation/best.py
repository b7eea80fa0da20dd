"""Which evaluations of a run were best, and whether it is worth going on.

Both are read off the rows of metrics.jsonl, the only record: it survives any crash, and a resume
that cuts rows off takes back what followed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config.params import ParamError, suggest
from lingo.contract import Experiment
from lingo.trainer.directory.run_directory import RunDirectory, row_tag

BEST: Literal["best"] = "best"
"""What asks for the best checkpoint where a step may be given."""


class Score(NamedTuple):
    """What the metric was at a step; None if it was not finite."""

    step: int
    value: float | None


class Ranking(NamedTuple):
    """Evaluations compared by one metric.

    Attributes:
        scores: by step.
        goal: whether the least value is best, or the greatest.
        patience: evaluations in a row without a better one after which it is enough; None: never.
    """

    scores: tuple[Score, ...]
    goal: Literal["min", "max"] = "min"
    patience: int | None = None

    def steps(self) -> list[int]:
        """Returns the steps, that of the best first; of equal ones the earlier, none not finite."""
        sign = 1 if self.goal == "min" else -1
        finite = [(sign * s.value, s.step) for s in self.scores if s.value is not None]
        return [step for _, step in sorted(finite)]

    def since_best(self) -> int:
        """Returns how many evaluations came after the best; all, if none was finite."""
        best = self.steps()[:1]
        return sum(not best or score.step > best[0] for score in self.scores)

    @property
    def is_enough(self) -> bool:
        """Whether the patience is at its end."""
        return self.patience is not None and self.since_best() >= self.patience


def ranking(experiment: Experiment, rows: Iterable[Mapping[str, Any]]) -> Ranking:
    """Returns the evaluations of a run, compared as its experiment says; none without a metric.

    Args:
        experiment: with `evaluate.metric`.
        rows: of metrics.jsonl; of two of one step the later counts.
    """
    p = experiment.p.evaluate
    if p.metric is None:
        return Ranking(())
    name, _, metric = p.metric.partition("/")
    tag = row_tag(f"eval/{metric}", name, first=name == next(iter(experiment.eval_inputs)))
    values = {row["step"]: row[tag] for row in rows if tag in row}
    return Ranking(tuple(Score(*pair) for pair in sorted(values.items())), p.goal, p.patience)


def check_metric(experiment: Experiment, found: Mapping[str, Mapping[str, float]]) -> None:
    """Raises ParamError if an evaluation did not give the metric by which it is compared.

    Args:
        experiment: says which.
        found: name of the input -> {TensorBoard tag: value}.
    """
    if experiment.p.evaluate.metric is None:
        return
    name, _, metric = experiment.p.evaluate.metric.partition("/")
    there = [tag.removeprefix("eval/") for tag in found[name]]
    if metric not in there:
        raise ParamError(
            f"evaluate.metric={experiment.p.evaluate.metric!r}: evaluating {name!r} gave no"
            f" {metric!r}.{suggest(metric, there)} It gave: {', '.join(there) or 'nothing'}."
        )


def protected(experiment: Experiment, run: RunDirectory) -> list[int]:
    """Returns the steps whose checkpoints stay because they are the best there are."""
    if not experiment.p.checkpoint.keep_best:
        return []
    there = set(store.steps(run.checkpoints))
    best = [step for step in ranking(experiment, run.metrics.read()).steps() if step in there]
    return best[: experiment.p.checkpoint.keep_best]


def choose(
    experiment: Experiment, run: RunDirectory, step: int | Literal["best"] | None
) -> Checkpoint:
    """Returns a sound checkpoint of a run.

    Args:
        experiment: of the run.
        run: its directory; nothing is written there.
        step: of the checkpoint; "best" by `evaluate.metric`; the latest that is sound if None.

    Raises:
        ParamError: if nothing says what is best.
        NoUsableCheckpoint, DamagedCheckpoint: if there is no sound checkpoint of that step.
    """
    if step == "best":
        step = _best_step(experiment, run)
    return store.find(run.checkpoints, step, of=run.path)


def _best_step(experiment: Experiment, run: RunDirectory) -> int:
    metric = experiment.p.evaluate.metric
    if metric is None:
        raise ParamError(
            f"step='best': nothing says which checkpoint of {run.path} is best;"
            " set evaluate.metric, such as 'heldout/loss'"
        )
    steps = ranking(experiment, run.metrics.read()).steps()
    if not steps:
        raise NoUsableCheckpoint(f"{run.path} has not been evaluated by {metric} yet.")
    return steps[0]
