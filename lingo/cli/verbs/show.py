"""Shows an experiment: every parameter it will have, or every weight.

    lingo show --exp=lm.source.tiny
    lingo show --exp=lm.source.tiny --set=optimizer.learning_rate=1e-3 --set='Stack=Repeat'
    lingo show --exp=lm.lingvo_dense.dense_1t --weights
    lingo show --run=runs/tiny --format=json

A parameter that nobody set is marked with where its value comes from. With --format=json it prints
what a run would keep as config.json, or the table of weights.
"""

from __future__ import annotations

import json

from absl import flags

from lingo.cli import choice, command
from lingo.config import text
from lingo.train import weight_table

WORD = ""


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define(values)
    command.boolean("weights", "Show the weights instead of the parameters.", values)
    command.choice("format", ("text", "json"), "How to print it.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the parameters or the weights."""
    del word
    chosen = choice.chosen(values)
    if values.weights:
        task = choice.built(chosen).task
        if values.format == "json":
            print(json.dumps(weight_table.as_json(weight_table.rows(task))))
        else:
            print(weight_table.render(task), end="")
    elif values.format == "json":
        print(choice.config(chosen, choice.places(values)), end="")
    else:
        print(text.render(text.resolve(chosen.params)), end="")
    return 0
