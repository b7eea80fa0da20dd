"""The contract of what is learned: a model, its losses and its metrics.

The training step divides; a task only adds. `norms` says from the batch alone by what each loss
term will be divided, `loss` returns sums over the examples it is given. So the gradients of
replicas, micro-batches and accumulation steps simply add, however unevenly a batch is split or
padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.data.array_spec import Specs
from lingo.decode.decoding import Decoding
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.learner.placement import ONE_DEVICE, Placement
from lingo.ops import random

Batch = Mapping[str, Any]
"""Flat dict of [B, ...] tensors, as `Input.batch` describes it."""


class Task(Layer, kind=True):
    """A model with a loss.

    Subclasses define `norms` and `loss`, and add `metrics`; those that continue texts also `decode`
    and `check_positions`.
    """

    def check_input(self, offers: Mapping[str, Any]) -> None:
        """Raises ParamError if an input does not suit the task.

        Args:
            offers: what is known of the input before reading it.
        """

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the weight of the batch in each loss term: {term: float32 scalar}.

        Depends on the batch alone (masks, labels), never on weights: the step adds norms up over
        replicas before the first loss is computed. `examples` is the norm of every term that is not
        named here, such as the side losses of layers.
        """
        return {"examples": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns each loss term summed over the batch: {term: float32 scalar}."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def coefficients(self) -> dict[str, float]:
        """Returns the factors of loss terms that have one other than 1."""
        return {}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Returns additive metric states of the batch: {name: {"sum", "weight"}}, scalars.

        float64 sums (`weighted_mean`) do not depend on how examples are split into batches. The
        default reports each loss term.
        """
        norms = self.loss_denominators(batch)
        return {
            f"loss/{term}": {"sum": total, "weight": norms.get(term, norms["examples"])}
            for term, total in self.loss(batch).items()
        }

    def batch_flops(self, specs: Specs) -> int:
        """Returns the floating-point operations of the matrix products of one forward pass.

        Args:
            specs: name -> (shape, dtype) of a batch, as `Input.specs` gives them.

        Returns:
            Operations for the whole batch, a multiply-add as two, nothing computed twice; 0 if they
            are not counted.
        """
        del specs
        return 0

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics to report, from the means over all examples.

        Args:
            means: name -> sum / weight of the states of `metrics`.
        """
        return dict(means)

    def check_positions(self, num_positions: int) -> None:
        """Raises ParamError if the task does not continue texts, or none of so many positions."""
        del num_positions
        raise ParamError(f"{type(self).__name__} continues no text: it has no `decode`")

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        """Continues prompts, with the random key of the call in progress.

        Args:
            batch: prompts, as `lingo.decode.text.prompt_batch` makes them.
            decoding: how tokens are chosen.

        Returns:
            `tokens` and `log_probs`, as `Decoding.decode` returns them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode")


def evaluate_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    place: Placement = ONE_DEVICE,
) -> Any:
    """Returns the metric states of a batch, side metrics of layers included, nothing random."""
    call = {"state": state, "rows": batch["rows"], **place.call_fields()}
    states, sides = context.apply(task, weights, batch, method="metrics", call=call)
    return states | sides.metrics


def decode_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    decoding: Decoding,
    key: random.Key,
    place: Placement = ONE_DEVICE,
) -> dict[str, tf.Tensor]:
    """Returns what `task.decode` does; nothing is random but the choice of tokens."""
    call = {"state": state, "rows": batch["rows"], "key": key, **place.call_fields()}
    return context.apply(task, weights, batch, decoding, method="decode", call=call)[0]
