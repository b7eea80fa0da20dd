"""Shows an experiment: every parameter it will have, every weight, or its learning rates.

    lingo show --exp=lm.source.tiny
    lingo show --exp=lm.source.tiny --set=optimizer.learning_rate=1e-3 --set='Stack=Repeat'
    lingo show --exp=lm.lingvo_dense.dense_1t --weights
    lingo show --exp=lm.source.tiny --plot_schedule
    lingo show --run=runs/tiny --format=json

A parameter that nobody set is marked with where its value comes from. With --format=json it prints
what a run would keep as config.json, the table of weights, or the steps and rates of the plot.
"""

from __future__ import annotations

import json

import numpy as np
from absl import flags

from lingo.cli import choice, command, plot
from lingo.cli.command import UsageError
from lingo.config import text
from lingo.config.params import ParamError
from lingo.train import weight_table
from lingo.train.experiment import Experiment

WORD = ""
POINTS = 1000  # steps between those of a plot


def define(values: flags.FlagValues) -> None:
    """Defines the verb's flags."""
    choice.define(values)
    command.boolean("weights", "Show the weights instead of the parameters.", values)
    command.boolean("plot_schedule", "Draw every learning rate from step 0 to max_steps.", values)
    command.choice("format", ("text", "json"), "How to print it.", values)


def run(values: flags.FlagValues, word: str) -> int:
    """Prints the parameters, the weights, or the learning rates."""
    del word
    if values.weights and values.plot_schedule:
        raise UsageError("--weights and --plot_schedule show different things: give one of them.")
    chosen, as_json = choice.chosen(values), values.format == "json"
    if values.weights:
        _print_weights(choice.built(chosen), as_json=as_json)
    elif values.plot_schedule:
        _print_rates(choice.built(chosen), as_json=as_json)
    elif as_json:
        print(choice.config(chosen, choice.places(values)), end="")
    else:
        print(text.render(text.resolve(chosen.params)), end="")
    return 0


def _print_weights(experiment: Experiment, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(weight_table.as_json(weight_table.rows(experiment.task))))
    else:
        print(weight_table.render(experiment.task), end="")


def _print_rates(experiment: Experiment, *, as_json: bool) -> None:
    steps = np.unique(np.linspace(0, experiment.p.max_steps, POINTS + 1).round())
    rates = _rates(experiment, steps)
    if as_json:
        shortest = {tag: [float(str(v)) for v in values] for tag, values in rates.items()}
        print(json.dumps({"steps": [int(step) for step in steps], "rates": shortest}))
        return
    alike: dict[bytes, list[str]] = {}
    for tag, values in rates.items():
        alike.setdefault(values.tobytes(), []).append(tag)
    for tags in alike.values():
        values = rates[tags[0]]
        peak = int(np.argmax(values))
        print(f"{', '.join(tags)}: {values[peak]:.4g} at most, at step {steps[peak]:.0f}")
        print(plot.curve(steps, values, names=("step", "rate")))


def _rates(experiment: Experiment, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Returns every learning rate that training reports, {tag: [N]}."""
    with np.errstate(over="ignore", invalid="ignore"):
        rates = {k: np.asarray(v) for k, v in experiment.optimizer.rates(steps).items()}
    for tag, values in rates.items():
        if not np.isfinite(values).all():
            step = steps[np.argmin(np.isfinite(values))]
            raise ParamError(f"optimizer: {tag} is not finite at step {step:.0f}")
    return rates
