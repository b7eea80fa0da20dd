"""Layers that take statistics of a batch: how replicas may share its rows without changing these.

A replica sees its own rows, and those of weight 0 that fill them up. Where statistics are of groups
of neighbouring rows, and every replica has whole groups and nothing else, they are those of one
device.
"""

from __future__ import annotations

from lingo.config.params import ParamError
from lingo.train.micro_batches import row_multiple
from lingo.train.runtimes.replicated.shares import Shares
from lingo.train.state import Learner


def check_statistics(learner: Learner, shares: Shares, size: int) -> None:
    """Raises ParamError if replicas would compute other statistics than one device.

    Args:
        learner: what they train.
        shares: how they share a batch.
        size: rows of the batch, over all replicas.
    """
    num, parts = shares.num_processes * shares.num_replicas, row_multiple(learner)
    for layer in learner.task.tree() if num > 1 else ():
        rows = layer.rows_counted()
        name = layer.path or type(layer).__name__
        if rows is not None and size % (num * parts):
            raise ParamError(
                f"mesh: {size} rows are no equal parts for {num} replicas, and statistics of {name}"
                " would count the rows that fill them up: train_input.batch_size has to be a"
                f" multiple of {num * parts}, or --set='mesh=Mesh(data={num})'",
                "mesh",
            )
        if rows == 0:
            each = size // num // parts
            raise ParamError(
                f"mesh: {name} would take statistics of each replica's rows alone, and compute"
                f" something else than one device: --set={type(layer).__name__}.statistics_over="
                f"{each} makes groups of so many rows everywhere, --set='mesh=Mesh(data={num})'"
                " keeps one of all rows",
                "mesh",
            )
