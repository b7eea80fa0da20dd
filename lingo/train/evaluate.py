"""Evaluation: one pass over a finite input, exact under padding and in any number of batches."""

from __future__ import annotations

from lingo.data.input import Input
from lingo.metrics.metric import Accumulator
from lingo.train.runtimes.runtime import Program
from lingo.train.task import Task


def evaluate(
    task: Task, program: Program, input: Input, *, weights: str = "trained"
) -> dict[str, float]:
    """Returns the task's metrics over all examples of an input.

    Args:
        task: what the program learns.
        program: holds the weights.
        input: one with `repeat=False`.
        weights: "trained", or "ema".
    """
    total = Accumulator()
    for step in range(input.num_batches()):
        total.add(program.evaluate(input.batch(step), weights=weights))
    return task.results(total.results())
