"""Lists the experiments: name, arguments, what it is.

    lingo list
    lingo list source           those with "source" in name or summary
    lingo list --params_dir=my/experiments

Experiments are functions marked @experiment in files below lingo's params directory, the working
directory's, and the directories that --params_dir and LINGO_PARAMS name.
"""

from __future__ import annotations

import sys
import textwrap

from lingo.cli.command import RootOptions
from lingo.config import experiment_index
from lingo.config.options import option_class, word
from lingo.config.printable import escape_controls

MAX_COLUMNS = 100
MAX_NAME_COLUMNS = 48  # a longer name has its description on the next line


@option_class
class Options(RootOptions):
    """The options of the verb."""

    word: str = word("[word]")


def run(options: Options) -> int:
    """Prints every experiment, in at most 100 columns."""
    index = experiment_index.index(options.roots())
    for problem in index.unreadable:
        print(escape_controls(problem), file=sys.stderr)
    rows = [
        (escape_controls(f"{entry.name}{entry.signature}"), escape_controls(entry.summary))
        for entry in index.search(options.word)
    ]
    short = [len(left) for left, _ in rows if len(left) <= MAX_NAME_COLUMNS]
    for left, right in rows:
        print("\n".join(_lines(left, right, max(short, default=0))))
    return 0


def _lines(left: str, right: str, width: int) -> list[str]:
    """Returns the lines of an experiment, with its description after its name, or below it."""
    if len(left) <= width:
        indent = " " * (width + 2)
        return _wrap(right, f"{left:{width}}  ", indent) or [left]
    return [*_wrap(left, "", " " * 8), *_wrap(right, " " * 4, " " * 4)]


def _wrap(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, MAX_COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
