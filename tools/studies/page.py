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
    """Returns mean and range of a metric in percent, of the trials that have one.

    As "71.2 (70.4 to 71.9)"; "71.2" for one; with ", 1 of 3 seeds" after it if others have none;
    "diverged" if all trials did; "-" if there is nothing else to tell.
    """
    found = [value for trial in trials if (value := results.metric(trial, tag)) is not None]
    if not found:
        states = {result.state if (result := results.get(trial)) else None for trial in trials}
        return "diverged" if states == {"diverged"} else NONE
    text = f"{100 * statistics.fmean(found):.1f}"
    if len(found) > 1:
        text += f" ({100 * min(found):.1f} to {100 * max(found):.1f})"
    return text if len(found) == len(trials) else f"{text}, {len(found)} of {len(trials)} seeds"
