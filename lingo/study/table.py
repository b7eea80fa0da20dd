"""What came of a sweep, in columns: a row a trial, and a row for the seeds of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lingo.study.metric import Metric
from lingo.study.trial import Result, key

SEED = "seed"


def table(results: Sequence[Result], metric: Metric) -> list[str]:
    """Returns the lines of a table: trial, metric, step, swept values, state.

    Args:
        results: in the order of the rows; at least one.
        metric: what they are compared by.
    """
    targets = list(results[0].trial.point)
    rows = [["trial", metric.name, "step", *_titles(targets), "state"]]
    for result in results:
        step = "-" if result.step is None else str(result.step)
        values = [result.trial.point[target] for target in targets]
        number = f"{result.trial.number:03d}"
        rows.append([number, _shown(result.value), step, *values, result.state])
    return _aligned(rows)


def over_seeds(results: Sequence[Result], metric: Metric) -> list[str]:
    """Returns the lines of a table of configurations, the best mean first.

    A row has mean, standard deviation (of a sample), minimum and maximum over the seeds of
    a configuration, and of how many of its trials: those that are done and reported a finite value.

    Args:
        results: of trials that differ in `seed`, and in something else.
        metric: what they are compared by.

    Returns:
        Nothing, if they differ in no seed or in nothing else.
    """
    targets = [target for target in results[0].trial.point if target != SEED]
    if not targets or len({result.trial.point.get(SEED) for result in results}) < 2:
        return []
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        found.setdefault(tuple(result.trial.point[t] for t in targets), []).append(result)
    scores = {
        values: [r.score for r in group if r.score is not None] for values, group in found.items()
    }
    means = [statistics.fmean(s) if s else None for s in scores.values()]
    rows = [[*_titles(targets), f"mean {metric.name}", "std", "min", "max", "finite"]]
    for place in metric.best_first(means):
        values = list(found)[place]
        finite = f"{len(scores[values])} of {len(found[values])}"
        rows.append([*values, *_spread(scores[values]), finite])
    return _aligned(rows)


def _spread(scores: Sequence[float]) -> list[str]:
    """Returns mean, standard deviation, minimum and maximum."""
    if not scores:
        return ["-"] * 4
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return [_shown(x) for x in (statistics.fmean(scores), deviation, min(scores), max(scores))]


def _titles(targets: Sequence[str]) -> list[str]:
    """Returns the last words of some targets, or all of those that would be alike."""
    keys = [key(target) for target in targets]
    return [k if keys.count(k) == 1 else t for k, t in zip(keys, targets, strict=True)]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
