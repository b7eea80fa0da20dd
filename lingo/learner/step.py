"""The training step: three pure functions of tensors; a runtime supplies only their placement.

    norms = total(task.norms(batch))                     # from the batch alone
    sums  = total(local(weights, state, batch, norms))   # gradients, moments, losses, metrics
    state, report = update(state, sums)                  # the same on every replica

`total` adds over replicas: the identity on one device and on a mesh, one all-reduce on replicas.
Nothing in `local` divides by a local batch size or a number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.learner import finite
from lingo.learner.placement import ONE_DEVICE, Placement
from lingo.learner.state import EMA, Learner, TrainState
from lingo.learner.task import Batch, Task
from lingo.ops import random
from lingo.ops.scan import accumulate
from lingo.optim.optimizer import select


def train_step(
    learner: Learner, state: TrainState, batch: Batch, place: Placement = ONE_DEVICE
) -> tuple[TrainState, dict[str, Any]]:
    """Does one step.

    Args:
        learner: task, optimizer and seed.
        state: before the step, tensors.
        batch: this replica's part of the step's batch; `rows` tells which.
        place: where tensors are.

    Returns:
        The state after the step, and the report of `update`.
    """
    task = learner.task
    with tf.name_scope("loss_denominators"):
        norms = place.total(task.loss_denominators(batch))
    key = random.fold(random.root_key(learner.seed), state.step)

    def part(batch: Batch) -> dict[str, Any]:
        return local_sums(task, state.weights, state.state, batch, norms, key, place)

    num_parts = learner.accumulation_steps
    sums = place.total(place.compute(lambda: accumulate_sums(part, batch, num_parts)))
    with tf.name_scope("update"), place.update_scope():
        return place.compute(lambda: update(learner, state, sums, place))


def local_sums(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    norms: Mapping[str, tf.Tensor],
    key: random.Key,
    place: Placement = ONE_DEVICE,
) -> dict[str, Any]:
    """Computes what this part of the batch contributes; contributions of all parts add.

    Args:
        task: what is learned.
        weights: program path -> tensor.
        state: program path -> tensor.
        batch: a part of the step's batch.
        norms: weight of the whole batch in each loss term.
        key: random key of (seed, step).
        place: where tensors are.

    Returns:
        `gradients` of the sum over terms of coefficient * sum / norm; `losses`, sum / norm by term;
        `moments` and `metrics` of the layers; `arrays`, the sums of what was read.
    """
    with tf.name_scope("local"), tf.GradientTape() as tape:
        tape.watch(weights)
        sums, sides = context.apply(
            task,
            weights,
            batch,
            method="loss",
            call={
                "state": state,
                "training": True,
                "key": key,
                "rows": batch["rows"],
                **place.call_fields(),
            },
        )
        losses = normalize_losses(task, sums, sides.losses, norms)
    gradients = tape.gradient(
        losses["total"], dict(weights), unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return {
        "gradients": {where: tf.convert_to_tensor(g) for where, g in gradients.items()},
        "losses": losses,
        "batch_statistics": sides.batch_statistics,
        "metrics": sides.metrics,
        "arrays": finite.array_sums(batch),
    }


def normalize_losses(
    task: Task,
    sums: Mapping[str, tf.Tensor],
    side_losses: Mapping[str, tf.Tensor],
    norms: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Returns each loss term's sum / norm, and as `total` what training minimizes.

    Args:
        task: knows the coefficients of its terms.
        sums: of the task: term -> sum over a part of the batch.
        side_losses: of its layers, likewise.
        norms: term -> weight of the whole batch.

    Raises:
        ParamError: if a layer's loss has the name of one of the task's.
    """
    if twice := sums.keys() & side_losses.keys() | {"total"} & (sums.keys() | side_losses.keys()):
        raise ParamError(f"two losses have the name {min(twice)!r}: rename the layer's")
    losses = {
        term: tf.math.divide_no_nan(value, norms[term if term in norms else "examples"])
        for term, value in (*sums.items(), *side_losses.items())
    }
    coefficients = task.coefficients()
    total = tf.add_n([coefficients.get(t, 1.0) * value for t, value in sorted(losses.items())])
    return losses | {"total": total}


def accumulate_sums(part: Callable[[Batch], Any], batch: Batch, num_parts: int) -> Any:
    """Returns the sum of what the parts of a batch contribute, computed one after the other.

    Args:
        part: from a part of the batch to a structure of tensors.
        batch: [B, ...] tensors.
        num_parts: divides B; each part is a run of neighbouring rows.

    Raises:
        ValueError: if `num_parts` does not divide B.
    """
    if num_parts == 1:
        return part(batch)
    size = batch["rows"].shape[0]
    if size is None or size % num_parts:
        raise ValueError(
            f"a batch of {size} examples does not split into accumulation_steps={num_parts} parts"
        )
    parts = {
        k: tf.reshape(v, [num_parts, size // num_parts, *v.shape[1:]]) for k, v in batch.items()
    }
    return accumulate(part, parts, num_parts)


def update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement = ONE_DEVICE
) -> tuple[TrainState, dict[str, Any]]:
    """Applies one step's sums, or leaves everything as it was.

    It does so if a loss, the gradient norm, a moment, or anything that would be new is not finite.

    Args:
        learner: task, optimizer and seed.
        state: before the step.
        sums: of `local`, added over all parts of the batch.
        place: where tensors are.

    Returns:
        The state after the step, and a report: `scalars` by TensorBoard tag; metric `states`;
        `shown`, by program path those statistics after the step that are shown over time;
        `not_finite`, int32: -1, or which of `finite.names` was the first to forbid the update.
    """
    weights, old = learner.weights(), (state.weights, state.slots, state.state)
    gradients = {where: place.shard_for_update(where, g) for where, g in sums["gradients"].items()}
    gradients = _zero_frozen(learner, gradients, place)
    squares = finite.square_sums(weights, gradients)
    grad_norm = tf.sqrt(tf.add_n([tf.reduce_sum(layers) for layers in squares.values()]))
    clipped = learner.optimizer.clip(weights, gradients, grad_norm)
    rates = learner.optimizer.rates(state.step)
    new = _apply_gradients(learner, state, clipped, sums["batch_statistics"], rates, place)
    found = finite.check_finite(learner, sums=sums, squares=squares, norm=grad_norm, new=new)
    after = TrainState(state.step + 1, *place.select(found.is_finite, new, old))
    scalars = {f"loss/{term}": value for term, value in sums["losses"].items()}
    scalars[finite.GRAD_NORM] = grad_norm
    scalars |= {f"learner/{tag}": rate for tag, rate in rates.items()}
    shown = {
        where: after.state[where] for where, spec in learner.task.states().items() if spec.shown
    }
    return after, {
        "scalars": scalars,
        "states": sums["metrics"],
        "shown": shown,
        "not_finite": found.first,
    }


def _zero_frozen(
    learner: Learner, gradients: Mapping[str, tf.Tensor], place: Placement
) -> dict[str, tf.Tensor]:
    """Returns the gradients with those of frozen weights set to zero: they count in no norm."""
    found = {}
    for where, weight in learner.weights().items():
        with place.device_scope(where):
            zeros = tf.zeros_like(gradients[where])
        found[where] = select(
            weight, learner.optimizer.trainable_layers(weight), gradients[where], zeros
        )
    return found


def _apply_gradients(
    learner: Learner,
    state: TrainState,
    gradients: Mapping[str, Any],
    moments: Mapping[str, Any],
    rates: Mapping[str, Any],
    place: Placement,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    optimizer, ema_decay = learner.optimizer, learner.optimizer.p.ema_decay
    weights, slots, moving = {}, {}, {}
    for where, weight in learner.weights().items():
        old = {k: v for k, v in state.slots[where].items() if k != EMA}
        value = place.shard_for_update(where, state.weights[where])
        new = optimizer.update(weight, value, gradients[where], old, state.step, rates)
        weights[where], slots[where] = place.shard_for_storage(where, new.value), dict(new.slots)
        if ema_decay is not None:
            ema = state.slots[where][EMA]
            slots[where][EMA] = ema + (1.0 - ema_decay) * (new.value - ema)
    for where, spec in learner.task.states().items():
        old = state.state[where]
        if where in moments and spec.decay is not None:
            moment = moments[where]
            weight = tf.reshape(moment["weight"], [*moment["weight"].shape, *[1] * len(spec.shape)])
            mean = tf.math.divide_no_nan(moment["sum"], weight)
            old = tf.where(weight > 0, spec.decay * old + (1.0 - spec.decay) * mean, old)
        moving[where] = old
    return weights, slots, moving
