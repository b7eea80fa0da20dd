"""Padding examples (weight 0): when devices need them, and when they would change results."""

from __future__ import annotations

import math

from lingo.layers.stacks.micro_batches import examples_together
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.state import Learner
from lingo.learner.task import Task


def pipelines(task: Task) -> list[Pipeline | PipelinedChain]:
    """Returns the pipelines among a task's layers."""
    return [layer for layer in task.tree() if isinstance(layer, (Pipeline, PipelinedChain))]


def row_multiple(learner: Learner) -> int:
    """Returns the number that each replica's batch must be a multiple of.

    `accumulation_steps` splits the batch into parts, and every pipeline splits each part into
    micro-batches. A pipeline whose layers compute neighbouring examples together (a mixture of
    experts routes them in groups) does not count: padding would end up inside the groups, so such
    a pipeline raises ParamError for a batch that does not divide.
    """
    counts = (x.p.num_micro_batches for x in pipelines(learner.task) if not _combines_examples(x))
    return learner.accumulation_steps * math.lcm(*counts)


def padding_changes_results(task: Task, num_rows: int) -> bool:
    """Returns whether examples of weight 0 at the end of a batch of `num_rows` change results.

    Some layers take statistics over all examples; some compute neighbouring examples together, or
    in micro-batches, and refuse a batch that does not divide.
    """
    counted = any(layer.batch_requirements().examples_counted is not None for layer in task.tree())
    uneven = any(num_rows % layer.p.num_micro_batches for layer in pipelines(task))
    return counted or uneven or _combines_examples(task)


def _combines_examples(layer: Task | Pipeline | PipelinedChain) -> bool:
    return examples_together([layer], (None, None)) > 1  # unknown sizes give the largest group
