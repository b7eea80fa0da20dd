"""Which checkpoints of a run are due, and which stay beside the latest.

The best stay for whoever wants them, and one stays for the run itself, to go back to: `rewind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingo.checkpoints.position import RunCounters
from lingo.contract import Experiment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import best
from lingo.trainer.guard import rewind
from lingo.trainer.guard.guard import first_anomaly


class Protected(NamedTuple):
    """Steps whose checkpoints stay, however many come later.

    Attributes:
        best: by `evaluate.metric`.
        back: where a rewind would go; none if there is no such checkpoint.
    """

    best: list[int]
    back: list[int]


def multiples(experiment: Experiment) -> list[int]:
    """Returns the numbers of steps after which, and after multiples of which, one is written."""
    p = experiment.p.checkpoint
    return [n for n in (p.every_steps, p.keep_every_steps) if n is not None]


def is_regular(experiment: Experiment, step: int) -> bool:
    """Returns whether a checkpoint is written after a step, whichever is the last."""
    p = experiment.p.evaluate
    compared = p.metric is not None and step % p.every_steps == 0
    return compared or any(step % n == 0 for n in multiples(experiment))


def protected(
    experiment: Experiment, run: RunDirectory, at: RunCounters, steps: Sequence[int]
) -> Protected:
    """Returns which checkpoints stay, by where a run stands.

    Also while nothing is wrong: many that are not regular may come before something is.

    Args:
        experiment: of the run.
        run: its reports say which is best.
        at: where it stands.
        steps: of all its checkpoints, in order.

    Raises:
        NoUsableCheckpoint: if the directory of checkpoints cannot be read.
    """
    p = experiment.p
    trouble = first_anomaly(at, p.guard, max_steps=p.max_steps)
    sound = trouble.step - trouble.steps if trouble else at.step - at.health.anomalous
    back = rewind.candidates(
        steps, at_most=sound, is_regular=lambda step: is_regular(experiment, step)
    )
    return Protected(best.protected(experiment, run), back[:1])
