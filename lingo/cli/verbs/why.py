"""Shows where a value comes from: default, parent, file and line, or --set; the last one counts.

    lingo why optimizer.learning_rate --exp=lm.source.tiny
    lingo why FeedForward.dropout_rate --exp=lm.source.tiny --set=FeedForward.dropout_rate=0.1

PATH is the path of a field, or Class.field for the field of every object of a class.
"""

from __future__ import annotations

from lingo.cli.experiment_options import ExperimentOptions
from lingo.config.options import option_class, word
from lingo.config.why import why


@option_class
class Options(ExperimentOptions):
    """The options of `lingo why`."""

    path: str = word("PATH")


def run(options: Options) -> int:
    """Prints the history of a field's values, for each field that PATH names."""
    for chain in why(options.resolve().params, options.path):
        print(chain)
    return 0
