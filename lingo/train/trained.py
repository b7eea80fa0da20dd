"""A trained model: an experiment with the weights of one of its checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from lingo.config.params import ParamError, Params, fields
from lingo.decode.sampling import Sampling
from lingo.decode.text import Continuation
from lingo.layers import context
from lingo.lazy import tf
from lingo.train.best import choose
from lingo.train.evaluate import evaluations
from lingo.train.experiment import Experiment
from lingo.train.generate import generate
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

    def __init__(
        self, params: Params, run: RunDirectory, *, step: int | Literal["best"] | None = None
    ) -> None:
        """Reads the weights.

        Args:
            params: of the experiment.
            run: its directory; nothing is written there.
            step: of the checkpoint; "best" by `evaluate.metric`; the latest that is sound if None.

        Raises:
            ParamError: if the experiment cannot be built, or nothing says what is best.
            NoUsableCheckpoint, DamagedCheckpoint: if there is no sound checkpoint of that step.
            CheckpointMismatch: if it is of another model.
        """
        self.experiment: Experiment = params.build()
        self.checkpoint = choose(self.experiment, run, step)
        self._state = restored(self.experiment.learner, self.checkpoint)
        self._samplings: dict[tuple[Any, ...], Sampling] = {}

    @property
    def step(self) -> int:
        """Steps that were done."""
        return self.checkpoint.step

    def loss(self, batch: Mapping[str, np.ndarray]) -> float:
        """Returns the loss that training would minimize, without dropout.

        Args:
            batch: [B, ...] arrays, as `experiment.train_input.batch(0)` returns them.

        Raises:
            ParamError: if arrays are missing or have another number of axes.
        """
        self._check_batch(batch)
        return float(self._loss({name: tf.constant(value) for name, value in batch.items()}))

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Returns the metrics over all examples of each evaluation input, by its name."""
        return dict(evaluations(self.experiment, self._program))

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Continues texts: `model.generate("def ")`.

        Args:
            prompts: a text, or several.
            max_tokens: how many tokens are added at most.
            temperature: of the choice of tokens, as the others: see `Sampling`.
            top_k: number of most likely tokens that are drawn among.
            top_p: probability that those drawn among have together.
            num_samples: texts for each prompt; None: one.
            seed: of what is drawn.

        Returns:
            What follows the prompt, a str; of several prompts a list of these; with `num_samples` a
            list of so many in the place of each.

        Raises:
            ParamError: for prompts that are no texts or too long, settings that make no sense, and
                an experiment that has no texts.
        """
        sampling = Sampling.params(
            max_tokens=max_tokens,
            num_samples=1 if num_samples is None else num_samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        one = isinstance(prompts, str)
        found = [
            [sample.text for sample in samples]
            for samples in self.decode([prompts] if one else prompts, sampling, seed=seed)
        ]
        texts = [samples[0] for samples in found] if num_samples is None else found
        return texts[0] if one else texts

    def decode(
        self,
        prompts: Sequence[str],
        sampling: Params,
        *,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[list[Continuation]]:
        """Returns the samples of each prompt, with tokens and their log-probabilities.

        Args:
            prompts: what to continue.
            sampling: of a Sampling.
            seed: of what is drawn.
            progress: called with how many prompts are done, and how many there are.

        Raises:
            ParamError: as `generate`.
        """
        if type(seed) is not int:
            raise ParamError(f"seed={seed!r} ({type(seed).__name__}) is no int")
        settings = tuple(getattr(sampling, name) for name in fields(sampling.cls))
        built = self._samplings.setdefault(settings, sampling.build())  # the one compiled before
        return generate(
            self.experiment, self._program, prompts, built, seed=seed, progress=progress
        )

    def _check_batch(self, batch: Mapping[str, np.ndarray]) -> None:
        specs = self.experiment.train_input.specs()
        hint = "experiment.train_input.batch(0) shows what a batch is"
        if not isinstance(batch, Mapping):
            raise ParamError(f"a batch is a dict of arrays, got {type(batch).__name__}: {hint}")
        if missing := [name for name in specs if name not in batch]:
            raise ParamError(f"the batch has no {', '.join(map(repr, missing))}: {hint}")
        for name, (shape, _) in specs.items():
            if np.ndim(batch[name]) != len(shape):
                raise ParamError(
                    f"{name!r} has shape {np.shape(batch[name])}, but needs {len(shape)} axes:"
                    f" {hint}"
                )

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
