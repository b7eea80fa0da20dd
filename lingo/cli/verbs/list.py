"""Lists the experiments: name, arguments, what it is.

    lingo list
    lingo list source           those with "source" in their name or description
    lingo list --params_dir=my/experiments

Experiments are functions marked @experiment in files below the params directory of lingo, the one
of the working directory, and those that --params_dir and LINGO_PARAMS name.
"""

from __future__ import annotations

import sys

from absl import flags

from lingo.cli import choice
from lingo.config import registry
from lingo.config.printable import printable

WORD = "[word]"


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define_places(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints a line for every experiment."""
    found = registry.index(choice.places(values))
    for problem in found.unreadable:
        print(printable(problem), file=sys.stderr)
    rows = [
        (printable(f"{entry.name}{entry.signature}"), printable(entry.summary))
        for entry in found.search(word)
    ]
    width = max((len(left) for left, _ in rows), default=0)
    for left, right in rows:
        print(f"{left:{width}}  {right}".rstrip())
    return 0
