"""Shows where a value comes from: default, parent, file and line, --set; the last is in force.

    lingo why optimizer.learning_rate --exp=lm.source.tiny
    lingo why FeedForward.dropout_rate --exp=lm.source.tiny --set=FeedForward.dropout_rate=0.1

A path of one field, or Class.field for every one of a class.
"""

from __future__ import annotations

from absl import flags

from lingo.cli import experiment_flags
from lingo.config.why import why

WORD = "PATH"


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    experiment_flags.define(values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the history of the values of a field."""
    for chain in why(experiment_flags.resolve(values).params, word):
        print(chain)
    return 0
