"""What studies over batch sizes share: the search of a learning rate for each, and curves."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from tools.studies.trial import Results, Trial, over_seeds


class RateSearch(NamedTuple):
    """Learning rates that are tried with one seed; the best one has all seeds."""

    tried: Sequence[Trial]
    tag: str  # of the metric that chooses the best, in 0..1, the higher the better

    def best(self, results: Results) -> Trial | None:
        """Returns the trial with the best learning rate, None before all were tried."""
        if any(results.get(trial) is None for trial in self.tried):
            return None
        return max(self.tried, key=lambda trial: results.metric(trial, self.tag) or 0.0)

    def best_over_seeds(self, results: Results) -> list[Trial]:
        """Returns the trials with the best learning rate, none before all were tried."""
        best = self.best(results)
        return over_seeds(best) if best else []

    def trials(self, results: Results) -> Iterator[Trial]:
        """Yields the trials, as far as the results at hand tell them."""
        yield from self.tried
        yield from self.best_over_seeds(results)


class Point(NamedTuple):
    """A point of a curve."""

    middle: float
    low: float
    high: float


def mean_point(values: Sequence[float]) -> Point:
    """Returns mean and range of some values."""
    return Point(statistics.fmean(values), min(values), max(values))


def percent_curve(results: Results, searches: Mapping[int, RateSearch]) -> dict[int, Point]:
    """Returns the metric of the best learning rates, in percent, by the batch sizes with one."""
    points = {}
    for batch, search in searches.items():
        found = [results.metric(trial, search.tag) for trial in search.best_over_seeds(results)]
        if values := [100 * value for value in found if value is not None]:
            points[batch] = mean_point(values)
    return points


def draw_curves(
    axes: Axes, curves: Mapping[str, Mapping[int, Point]], *, batches: Sequence[int]
) -> None:
    """Draws curves over batch sizes by name: a line through the middles, a bar for each range."""
    for name, points in curves.items():
        if points:
            middles = [point.middle for point in points.values()]
            line = axes.plot([*points], middles, marker="o", label=name)[0]
            for batch, point in points.items():
                axes.plot([batch] * 2, [point.low, point.high], color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.set_xlabel("batch size")
    axes.grid(alpha=0.3)
    if axes.lines and len(curves) > 1:
        axes.legend(frameon=False)
