"""Overrides that set the examples of a step, also of inputs that take those of other inputs."""

from __future__ import annotations

from lingo.config.node.tree import walk
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data.input import Input


def batch_settings(experiment: Params, batch_size: int) -> list[str]:
    """Returns overrides, as `--set` takes them, of the batch size of an experiment's input.

    An input inside another one, as `MixedInput` has it, is set where it has a size of its own.
    Raises ParamError if there is none to set.
    """
    found = [
        f"{path}.batch_size={batch_size}"
        for path, one in walk(experiment.train_input, "train_input")
        if issubclass(one.cls, Input) and one.__arguments__.get("batch_size") is not None
    ]
    if not found:
        name = experiment.train_input.cls.__name__
        raise ParamError(
            f"--batch={batch_size}: {name} has no batch_size that is set: leave it out"
        )
    return found


def check_batch(experiment: Experiment, batch_size: int) -> None:
    """Raises ParamError if the input makes batches of another size."""
    (made,) = experiment.train_input.specs()["rows"][0]
    if made != batch_size:
        name = type(experiment.train_input).__name__
        raise ParamError(
            f"--batch={batch_size}: {name} makes batches of {made} with it: set the sizes of its"
            " inputs by --set in its place"
        )
