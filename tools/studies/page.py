"""The page of a study: its tables are made from the results, its text by a person.

A table stands between two comments of the page:

    <!-- table: optimizers -->
    <!-- end -->
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from tools.studies.trial import Results, Trial

NONE = "-"
"""What a table has where there is no result yet."""

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Returns a page with its tables, lines of Markdown by name, replaced by these.

    Raises KeyError if the page has a table that is not among them.
    """

    def fill(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        return "".join([begin, *(f"{line}\n" for line in tables[name]), end])

    return _TABLE.sub(fill, page)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown.

    >>> table(["a", "b"], [["1", "2"]])
    ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    rule = "|" + "---|" * len(head)
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], rule, *lines[1:]]


def percent_over_seeds(results: Results, trials: Sequence[Trial], tag: str = "accuracy") -> str:
    """Returns mean and range of a metric in percent, of the trials that have one, as `spread` does.

    "diverged" if all trials did.
    """
    values = [results.metric(trial, tag) for trial in trials]
    found = [100 * value for value in values if value is not None]
    states = {result.state if (result := results.get(trial)) else None for trial in trials}
    return "diverged" if states == {"diverged"} else spread(found, len(trials))


def mean_over_seeds(results: Results, trials: Sequence[Trial], tag: str, *, digits: int = 1) -> str:
    """Returns mean and range of a metric, of the trials that have one, as `spread` does."""
    values = [value for trial in trials if (value := results.metric(trial, tag)) is not None]
    return spread(values, len(trials), digits=digits)


def minutes_over_seeds(results: Results, trials: Sequence[Trial]) -> str:
    """Returns mean and range of the minutes of trainings, evaluations included, as `spread` does.

    A share of the machine's cores takes them, with the programs that run there at the time.
    """
    found = [result.seconds / 60 for trial in trials if (result := results.get(trial))]
    return spread(found, len(trials), digits=0)


def spread(values: Sequence[float], num_seeds: int, *, digits: int = 1) -> str:
    """Returns mean and range of the values that some of the seeds have.

    As "71.2 (70.4 to 71.9)"; "71.2" for one; with ", 1 of 3 seeds" after it if others have none;
    "-" if no seed has one.
    """
    if not values:
        return NONE
    mean, low, high = (
        f"{value:,.{digits}f}" for value in (statistics.fmean(values), min(values), max(values))
    )
    text = f"{mean} ({low} to {high})" if len(values) > 1 else mean
    return text if len(values) == num_seeds else f"{text}, {len(values)} of {num_seeds} seeds"
