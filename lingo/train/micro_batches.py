"""Which layers of a task cut a batch into micro-batches, and which numbers of rows they can cut."""

from __future__ import annotations

import math

from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.train.state import Learner
from lingo.train.task import Task


def pipelines(task: Task) -> list[Pipeline | PipelinedChain]:
    """Returns the layers of a task that are pipelines."""
    return [layer for layer in task.tree() if isinstance(layer, (Pipeline, PipelinedChain))]


def row_multiple(learner: Learner) -> int:
    """Returns of which number the rows have to be a multiple that one device trains with.

    They are cut into parts by `accumulation_steps`, and each part into the micro-batches of every
    pipeline. Rows that layers compute as one, such as a group of experts, are not in it.
    """
    counts = (layer.p.num_micro_batches for layer in pipelines(learner.task))
    return learner.accumulation_steps * math.lcm(*counts)
