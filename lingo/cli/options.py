"""The options that a verb (`lingo train`) and a Python function (`lingo.train`) share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lingo.config.options import option, option_class

if TYPE_CHECKING:
    from pathlib import Path

    from lingo.config.params import Params


@option_class
class TrainOptions:
    """Options for training."""

    allow_change: bool = option(
        "Resume from a checkpoint of another configuration, other data or other code.",
        default=False,
    )
    note: str | None = option("A line about the run, shown by `lingo runs`.", default=None)
    tag: Sequence[str] = option(
        "A word by which `lingo runs` finds the run; an empty one removes all.", default=()
    )
    audit: bool = option("Write loss and examples of every step into audit.jsonl.", default=False)


@dataclasses.dataclass(frozen=True)
class TrainCall(TrainOptions):
    """The arguments of `lingo.train`."""

    params: Params
    logdir: str | Path


@option_class
class TrustOptions:
    """The option that says which files' code may be imported."""

    trust: Sequence[str] = option(
        "A file of classes that the run may import. An unchanged file that `lingo train --exp` has"
        " trained here needs no trust.",
        default=(),
    )


@option_class
class StepOptions:
    """The option that says which checkpoint to read."""

    step: int | Literal["best"] | None = option(
        "The checkpoint of this step, or the best by evaluate.metric; else the latest sound.",
        default=None,
    )


@option_class
class LoadOptions(TrustOptions, StepOptions):
    """Options for loading a model."""

    quantize: Literal["none", "int8_weights"] = option(
        "int8_weights keeps the weights of products in 8 bits.", default="none"
    )


@dataclasses.dataclass(frozen=True)
class LoadCall(LoadOptions):
    """The arguments of `lingo.load`."""

    run_dir: str | Path


@option_class
class CheckOptions:
    """Options that say which experiments to check, and how."""

    names: Sequence[str] = option(
        "An experiment to check, by name or file; else all.", default=(), flag="exp"
    )
    trace: bool = option("Trace training and evaluation, too, without weights.", default=False)
    contract: bool = option(
        "Run it, and check the promises of layers, task and input.", default=False
    )


@option_class
class SweepOptions:
    """Options that say how a sweep chooses and compares its trials."""

    search: Literal["grid", "random", "optuna"] = option(
        "How to choose the combinations.", default="grid"
    )
    num_trials: int | None = option("How many trials; a grid runs all.", default=None, minimum=1)
    seed: int | None = option("Seed of a random or optuna search; else 0.", default=None)
    metric: str | None = option(
        "The metric of the trials: input/metric of an evaluation, or a tag such as loss/total.",
        default=None,
    )
    goal: Literal["min", "max"] | None = option(
        "Which values of the metric are best; else evaluate.goal, or min for another metric.",
        default=None,
    )
    prune: str | None = option(
        "Ends trials early that are worse than others: median, halving, or halving(steps=100).",
        default=None,
    )
    workers: int = option("How many trials run at a time.", default=1, minimum=1)
