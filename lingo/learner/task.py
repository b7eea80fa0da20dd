"""The contract of a task: a model, its losses and its metrics.

A task only adds; the training step divides. `loss` returns sums over the examples of a batch,
`loss_denominators` returns, from the batch alone, what each of them is divided by. So the gradients
of replicas, micro-batches and accumulation steps simply add, however unevenly a batch is split or
padded.

Axes: B examples.
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
"""{name: [B, ...] tensor}, as `Input.batch` describes it."""


class Task(Layer, interface=True):
    """A model with a loss.

    Subclasses define `loss`, override `loss_denominators` and `metrics` where needed, and, if they
    continue texts, define `decode` and `check_positions`.
    """

    def check_input(self, offers: Mapping[str, Any]) -> None:
        """Raises ParamError if an input does not suit the task.

        Args:
            offers: what `Input.offers` returns: what is known of the data before reading it.
        """

    def loss_denominators(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns what each loss term is divided by: the weight of the batch in it.

        It depends on the batch alone (masks, labels), never on weights: the step adds denominators
        over replicas before it computes the first loss.

        Args:
            batch: {name: [B, ...] tensor}; the default sums `weights`, float32 [B].

        Returns:
            {term: float32 scalar}; `examples` is the denominator of every term that has none of its
            own, such as the auxiliary losses of layers.
        """
        return {"examples": tf.reduce_sum(batch["weights"])}

    def loss(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns each loss term summed over the batch, weighted: {term: float32 scalar}.

        Args:
            batch: {name: [B, ...] tensor}.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def coefficients(self) -> dict[str, float]:
        """Returns the coefficients of loss terms in the total loss; 1 for a term not named."""
        return {}

    def metrics(self, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        """Returns additive metric states of the batch.

        float64 sums (`weighted_mean`) do not depend on how examples are split into batches. The
        default reports each loss term.

        Args:
            batch: {name: [B, ...] tensor}.

        Returns:
            {name: {"sum", "weight"}}, float scalars.
        """
        norms = self.loss_denominators(batch)
        return {
            f"loss/{term}": {"sum": total, "weight": norms.get(term, norms["examples"])}
            for term, total in self.loss(batch).items()
        }

    def batch_flops(self, specs: Specs) -> int:
        """Returns the floating-point operations of the matrix products of one forward pass.

        Args:
            specs: name -> (shape, dtype) of a batch, as `Input.specs` returns them.

        Returns:
            Operations for the whole batch: a multiply-add counts as two, rematerialization does not
            count; 0 if the task does not count its operations.
        """
        del specs
        return 0

    def results(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics to report, from the means over all examples.

        Args:
            means: name -> sum / weight of the metric states (`metrics`).
        """
        return dict(means)

    def check_positions(self, num_positions: int) -> None:
        """Raises ParamError if the task cannot continue texts up to `num_positions` positions."""
        del num_positions
        raise ParamError(f"{type(self).__name__} continues no text: it has no `decode`")

    def decode(self, batch: Batch, decoding: Decoding) -> dict[str, tf.Tensor]:
        """Continues prompts; draws from the random key of the current call context.

        Args:
            batch: prompts, {name: [B, ...] tensor}, as `lingo.decode.text.prompt_batch` makes them.
            decoding: how tokens are chosen.

        Returns:
            `tokens` (int32) and `log_probs` (float32), with the shapes of `Decoding.decode`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decode")


def evaluate_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    place: Placement = ONE_DEVICE,
) -> Any:
    """Returns the metric states of a batch, side metrics of layers included; draws nothing.

    Args:
        task: the model and its metrics.
        weights: program path -> float32 [*stacked axes, ...].
        state: program path -> float32 [*stacked axes, ...], moving statistics.
        batch: {name: [B, ...] tensor}, `rows` included.
        place: where tensors are.

    Returns:
        {name: {"sum", "weight"}}, float scalars.
    """
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
    """Returns `task.decode` of a batch of prompts; only the choice of tokens is random.

    Args:
        task: a task that defines `decode`.
        weights: program path -> float32 [*stacked axes, ...].
        state: program path -> float32 [*stacked axes, ...], moving statistics.
        batch: prompts, {name: [B, ...] tensor}, `rows` included.
        decoding: how tokens are chosen.
        key: random key of the choice of tokens.
        place: where tensors are.

    Returns:
        `tokens` (int32) and `log_probs` (float32), with the shapes of `Decoding.decode`.
    """
    call = {"state": state, "rows": batch["rows"], "key": key, **place.call_fields()}
    return context.apply(task, weights, batch, decoding, method="decode", call=call)[0]
