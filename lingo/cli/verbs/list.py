"""Lists the experiments: first those that train on a laptop, then all others by field.

    lingo list
    lingo list source           those with "source" in name or summary, with their arguments
    lingo list --params_dir=my/experiments

Experiments are functions marked @experiment in files below lingo's params directory, the working
directory's, and the directories that --params_dir and LINGO_PARAMS name.
"""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Sequence

from lingo.cli.command import RootOptions
from lingo.config import experiment_index
from lingo.config.experiment_index import Entry
from lingo.config.options import option, option_class, word
from lingo.config.printable import escape_controls

MAX_COLUMNS = 98  # maximum width of a line, without an indentation by two
MAX_NAME_COLUMNS = 48  # a longer name has its summary on the next line


@option_class
class Options(RootOptions):
    """The options of `lingo list`."""

    word: str = word("[word]")
    names: bool = option("Print the names alone.", default=False)


def run(options: Options) -> int:
    """Prints experiments, in at most 100 columns.

    Experiments that match a word are printed with their arguments.
    """
    index = experiment_index.index(options.roots())
    for problem in index.unreadable:
        print(escape_controls(problem), file=sys.stderr)
    entries = index.search(options.word)
    if options.names:
        lines = [escape_controls(entry.name) for entry in entries]
    elif options.word:
        lines = _table([(f"{e.name}{e.signature}", e.summary) for e in entries])
    else:
        lines = _groups(entries)
    print("\n".join(lines))
    return 0


def _groups(entries: Sequence[Entry]) -> list[str]:
    """Returns a line per experiment: first those with minutes, then the others, by field."""
    lines: list[str] = []
    small = [entry for entry in entries if entry.minutes is not None]
    if small:
        small.sort(key=lambda entry: entry.minutes or 0)
        rows = [(f"{entry.minutes:3}  {entry.name}", entry.summary) for entry in small]
        lines = [
            "These train on a laptop; minutes as measured on a busy machine:",
            *_indent(_table(rows)),
            "",
        ]
    others = [entry for entry in entries if entry.minutes is None]
    for field, found in itertools.groupby(others, lambda entry: entry.name.partition(".")[0]):
        rows = [(entry.name, entry.summary) for entry in found]
        lines += [f"{escape_controls(field)}:", *_indent(_table(rows)), ""]
    return [*lines, "`lingo list WORD` and `lingo describe NAME` show arguments, too."]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the lines of a table with two columns: name and summary."""
    shown = [(escape_controls(left), escape_controls(right)) for left, right in rows]
    widths = [len(left) for left, _ in shown if len(left) <= MAX_NAME_COLUMNS]
    return [line for left, right in shown for line in _lines(left, right, max(widths, default=0))]


def _lines(left: str, right: str, width: int) -> list[str]:
    """Returns the lines of an experiment: its name, and its summary after it or below it."""
    if len(left) <= width:
        indent = " " * (width + 2)
        return _wrap(right, f"{left:{width}}  ", indent) or [left]
    return [*_wrap(left, "", " " * 8), *_wrap(right, " " * 4, " " * 4)]


def _wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, MAX_COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
