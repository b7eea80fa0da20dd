"""Checks that layers with batch statistics compute the same on replicas as on one device.

A replica sees its own examples, and padding examples of weight 0. If statistics are over groups of
neighbouring examples, and every replica has whole groups without padding, results are those of one
device.
"""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.layers.layer import Layer
from lingo.layers.vision.batch_norm import BatchNorm
from lingo.learner.filling import row_multiple
from lingo.learner.state import Learner
from lingo.runtimes.replicated.shares import Shares


def check_statistics(learner: Learner, shares: Shares, size: int) -> None:
    """Raises ParamError if replicas would compute other batch statistics than one device.

    Args:
        learner: what they train.
        shares: how they share a batch.
        size: number of examples of the batch, over all replicas.
    """
    num, parts = shares.num_processes * shares.num_replicas, row_multiple(learner)
    for layer in learner.task.tree():
        if (rows := layer.batch_requirements().examples_counted) is None:
            continue
        name = layer.path or type(layer).__name__
        if size % (num * parts):
            raise ParamError(
                f"runtime: {size} rows are no {num * parts} equal parts, for {num} replicas and"
                f" {parts} parts of what each has, and statistics of {name} would count the rows"
                " that fill them up: train_input.batch_size has to be a multiple of"
                f" {num * parts}",
                "runtime",
            )
        if rows == 0 and num > 1:
            raise ParamError(
                f"runtime: {name} would take statistics of each replica's rows alone, and compute"
                f" something else than one device: {_groups(layer, size // num // parts)}"
                f"--set='runtime=Mesh(data={num})' keeps one group of all rows",
                "runtime",
            )


def _groups(layer: Layer, size: int) -> str:
    """Returns advice for grouped statistics: the flag of a BatchNorm; "" for other layers."""
    if not isinstance(layer, BatchNorm):
        return ""
    name = type(layer).__name__
    return f"--set={name}.statistics_over={size} makes groups of so many rows everywhere, "
