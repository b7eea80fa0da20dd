"""A trained model: an experiment with the weights of one of its checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.params import Params
from lingo.layers import context
from lingo.lazy import tf
from lingo.train.evaluate import evaluate
from lingo.train.experiment import Experiment
from lingo.train.record import checkpoint
from lingo.train.record.checkpoint import Checkpoint, NoUsableCheckpoint
from lingo.train.record.run_directory import RunDirectory
from lingo.train.runtimes.runtime import Program
from lingo.train.state import restored
from lingo.train.step import normalized
from lingo.train.task import Batch


class Trained:
    """A model as it stood at a step of its run.

    Attributes:
        experiment: what was trained.
        checkpoint: where the weights come from.
    """

    def __init__(self, params: Params, run: RunDirectory, *, step: int | None = None) -> None:
        """Reads the weights.

        Args:
            params: of the experiment.
            run: its directory; nothing is written there.
            step: of the checkpoint; the latest that is sound if None.

        Raises:
            ParamError: if the experiment cannot be built.
            NoUsableCheckpoint, DamagedCheckpoint: if there is no sound checkpoint of that step.
            CheckpointMismatch: if it is of another model.
        """
        self.experiment: Experiment = params.build()
        self.checkpoint = _found(run, step)
        self._state = restored(self.experiment.learner, self.checkpoint)

    @property
    def step(self) -> int:
        """Steps that were done."""
        return self.checkpoint.step

    def loss(self, batch: Mapping[str, np.ndarray]) -> float:
        """Returns the loss that training would minimize, without dropout.

        Args:
            batch: [B, ...] arrays, as `experiment.train_input.batch(0)` returns them.
        """
        return float(self._loss({name: tf.constant(value) for name, value in batch.items()}))

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Returns the metrics over all examples of each evaluation input, by its name."""
        weights = self.experiment.p.evaluate.weights
        return {
            name: evaluate(self.experiment.task, self._program, input, weights=weights)
            for name, input in self.experiment.eval_inputs.items()
        }

    @functools.cached_property
    def _loss(self) -> Any:
        task, state = self.experiment.task, self._state

        def loss(batch: Batch) -> tf.Tensor:
            call = {"state": state.state, "rows": batch["rows"]}
            sums, sides = context.apply(task, state.weights, batch, method="loss", call=call)
            return normalized(task, sums, sides.losses, task.norms(batch))["total"]

        return tf.function(loss, autograph=False)

    @functools.cached_property
    def _program(self) -> Program:
        return self.experiment.mesh.start(self.experiment.learner, self._state)


def _found(run: RunDirectory, step: int | None) -> Checkpoint:
    if step is None:
        found = checkpoint.latest(run.checkpoints)
        if found is None:
            raise NoUsableCheckpoint(f"{run.path} has no checkpoint yet.")
        return found
    there = checkpoint.steps(run.checkpoints)
    if step not in there:
        steps = ", ".join(map(str, there)) or "none"
        raise NoUsableCheckpoint(f"{run.path} has no checkpoint of step {step}; it has {steps}.")
    found = checkpoint.open_checkpoint(checkpoint.step_path(run.checkpoints, step))
    found.verify()
    return found
