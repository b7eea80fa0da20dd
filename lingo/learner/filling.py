"""Rows of weight 0 that fill a batch up: where devices need them, and where they would count."""

from __future__ import annotations

import math

from lingo.layers.stacks.micro_batches import rows_together
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import Learner
from lingo.learner.task import Task


def pipelines(task: Task) -> list[Pipeline | PipelinedChain]:
    """Returns the layers of a task that are pipelines."""
    return [layer for layer in task.tree() if isinstance(layer, (Pipeline, PipelinedChain))]


def row_multiple(learner: Learner) -> int:
    """Returns of which number a replica's rows are made a multiple.

    They are cut into parts by `accumulation_steps`, and each part into the micro-batches of every
    pipeline. A pipeline whose layers compute neighbouring rows as one, such as a group of experts,
    is left out: what fills up would come between these. It refuses rows that do not divide.
    """
    counts = (x.p.num_micro_batches for x in pipelines(learner.task) if not _combines_examples(x))
    return learner.accumulation_steps * math.lcm(*counts)


def padding_changes_results(task: Task, num_rows: int) -> bool:
    """Returns whether rows of weight 0 after those of a batch may change what is computed.

    Some layers take statistics of all rows; some compute neighbours as one, or in micro-batches,
    and refuse numbers that do not divide.

    Args:
        task: what is computed.
        num_rows: of the batch, filled up.
    """
    counted = any(layer.rows_counted() is not None for layer in task.tree())
    cut = any(num_rows % layer.p.num_micro_batches for layer in pipelines(task))
    return counted or cut or _combines_examples(task)


def _combines_examples(layer: Task | Pipeline | PipelinedChain) -> bool:
    return rows_together([layer], (None, None)) > 1  # the most, whatever the length of a row
