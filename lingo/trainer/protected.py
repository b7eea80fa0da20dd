"""Which checkpoints of a run are due, and which are kept beside the latest.

The best are kept for the user, and one is kept as the target of a rewind (`guard/rewind.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingo.checkpoints.run_counters import RunCounters
from lingo.contract import Experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.guard import rewind
from lingo.trainer.guard.guard import first_anomaly


class Protected(NamedTuple):
    """Steps whose checkpoints are kept, however many come later.

    Attributes:
        best: the best steps by `evaluate.metric`.
        back: the step to which a rewind would go; empty if there is no such checkpoint.
    """

    best: list[int]
    back: list[int]


def multiples(experiment: Experiment) -> list[int]:
    """Returns the intervals, in steps, at which checkpoints are written."""
    p = experiment.p.checkpoint
    return [n for n in (p.every_steps, p.keep_every_steps) if n is not None]


def is_regular(experiment: Experiment, step: int) -> bool:
    """Returns whether a checkpoint is written after a step even if it is not the last one."""
    p = experiment.p.evaluate
    compared = p.metric is not None and step % p.every_steps == 0
    return compared or any(step % n == 0 for n in multiples(experiment))


def protected(
    experiment: Experiment, run: RunDirectory, at: RunCounters, steps: Sequence[int]
) -> Protected:
    """Returns which checkpoints of a run are kept.

    A target for a rewind is also kept while nothing is wrong: many checkpoints that are not regular
    may be written before an anomaly is.

    Args:
        experiment: the run's experiment.
        run: the run directory; its reports tell which checkpoint is best.
        at: the run's counters.
        steps: the steps of all its checkpoints, in order.

    Raises:
        NoUsableCheckpoint: if the directory of checkpoints cannot be read.
    """
    p = experiment.p
    trouble = first_anomaly(at, p.guard, max_steps=p.max_steps)
    sound = trouble.step - trouble.steps if trouble else at.step - at.health.num_anomalous
    back = rewind.candidates(
        steps, at_most=sound, is_regular=lambda step: is_regular(experiment, step)
    )
    return Protected(best.protected(experiment, run), back[:1])
