"""Reports of a sweep: a line for each event, tables at the end, and JSON for other programs."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from typing import Any

from lingo.study.metric import Metric
from lingo.study.trial import Result, last_word

SEED = "seed"


def describe_result(result: Result, metric: Metric, *, last_line: str) -> str:
    """Describes a trial's result, such as "done, heldout/loss 3.21 at step 300".

    `last_line` is the last line that the trial's process printed.
    """
    match result.state:
        case "stopped":
            return "stopped; the same command resumes it"
        case "failed":
            return f"failed with exit code {result.exit_code}: {last_line or 'no output'}"
        case "pruned":
            before = " before" if result.exit_code is None else ""
            return f"pruned{before}, {metric.name} {_number(result.value)} at step {result.step}"
        case "done":
            done = "done before" if result.exit_code is None else "done"
            if result.value is None:
                return f"{done}, no finite {metric.name}"
            return f"{done}, {metric.name} {result.value:.6g} at step {result.step}"


def describe_progress(results: Sequence[Result], *, num_trials: int, num_workers: int) -> str:
    """Returns the best result and the time left: "; best 001 3.21; ETA 0:02:00".

    `results` are sorted, the best first.
    """
    text = ""
    if results and (score := results[0].score) is not None:
        text += f"; best {results[0].trial.number:03d} {score:.6g}"
    seconds = [result.seconds for result in results if result.seconds is not None]
    if seconds and (num_left := num_trials - len(results)):
        rest = statistics.fmean(seconds) * max(num_left / num_workers, 1)
        text += f"; ETA {datetime.timedelta(seconds=round(rest))}"
    return text


def results_json(results: Sequence[Result], metric: Metric) -> dict[str, Any]:
    """Returns the content of results.json; `results`, at least one, are sorted, the best first."""
    trials = [
        {
            "number": result.trial.number,
            "name": result.trial.path.name,
            "values": result.trial.point,
            "state": result.state,
            "value": result.value,
            "step": result.step,
            "exit_code": result.exit_code,
            "command": result.trial.command,
        }
        for result in results
    ]
    best = None if results[0].score is None else results[0].trial.path.name
    return {"metric": metric.name, "goal": metric.goal, "best": best, "trials": trials}


def trial_table(results: Sequence[Result], metric: Metric) -> list[str]:
    """Returns a table's lines, one per result: trial, metric, step, values, state.

    There must be at least one result.
    """
    targets = list(results[0].trial.point)
    rows = [["trial", metric.name, "step", *_titles(targets), "state"]]
    for result in results:
        cells = [f"{result.trial.number:03d}", _number(result.value), _number(result.step)]
        rows.append([*cells, *(result.trial.point[target] for target in targets), result.state])
    return align(rows)


def seed_table(results: Sequence[Result], metric: Metric) -> list[str]:
    """Returns the lines of a table that compares configurations over seeds, the best mean first.

    A row has mean, standard deviation (of a sample), minimum and maximum over a configuration's
    seeds, and how many of its trials are done and reported a finite value. The table is [] unless
    trials differ both in the seed and in another value.
    """
    targets = [target for target in results[0].trial.point if target != SEED]
    if not targets or len({result.trial.point.get(SEED) for result in results}) < 2:
        return []
    configurations: dict[tuple[str, ...], list[float | None]] = {}
    for result in results:
        values = tuple(result.trial.point[target] for target in targets)
        configurations.setdefault(values, []).append(result.score)
    rows: list[tuple[float | None, list[str]]] = []
    for values, scores in configurations.items():
        finite = [score for score in scores if score is not None]
        mean = statistics.fmean(finite) if finite else None
        std = statistics.stdev(finite) if len(finite) > 1 else None
        numbers = (mean, std, min(finite, default=None), max(finite, default=None))
        count = f"{len(finite)} of {len(scores)}"
        rows.append((mean, [*values, *map(_number, numbers), count]))
    rows.sort(key=lambda row: metric.rank(row[0]))
    titles = [*_titles(targets), f"mean {metric.name}", "std", "min", "max", "finite"]
    return align([titles, *(cells for _, cells in rows)])


def _titles(targets: Sequence[str]) -> list[str]:
    """Returns each target's last word, or the whole target if several have the same last word."""
    words = [last_word(target) for target in targets]
    return [w if words.count(w) == 1 else t for w, t in zip(words, targets, strict=True)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line per row, with the cells of each column at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
