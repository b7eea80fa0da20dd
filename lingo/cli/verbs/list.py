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
from lingo.cli.command import UsageError
from lingo.config import registry
from lingo.config.params import suggest
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
    asked = word.lower()
    entries = [e for e in found.entries.values() if asked in f"{e.name} {e.summary}".lower()]
    if word and not entries:
        raise UsageError(f"no experiment has {word!r} in it.{suggest(word, found.entries)}")
    rows = [
        (printable(f"{entry.name}{entry.signature}"), printable(entry.summary)) for entry in entries
    ]
    width = max((len(left) for left, _ in rows), default=0)
    for left, right in rows:
        print(f"{left:{width}}  {right}".rstrip())
    return 0
