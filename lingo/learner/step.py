"""The training step as three pure functions of tensors; a runtime only places the tensors.

    denominators = total(loss_denominators(batch))             # from the batch alone
    sums = total(batch_sums(state, batch, denominators))       # gradients, losses, ...
    state, report = update(state, sums)                        # on each replica, all or its shard

`total` adds over replicas: it is the identity on one device and on a mesh, and an all-reduce on
replicas. `batch_sums` never divides by a local batch size or a number of replicas.

Axes: B examples in a replica's part of the batch. "Stacked axes" are the leading axes along which
a program stacks the tensors of identical layers. A "program path" names such a tensor, stacked or
not: a weight or a state, such as a moving statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line
from lingo.data.array_spec import Specs, marked_task
from lingo.decode.decoding import Decoding
from lingo.layers import context
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.learner import finite, loss_scale, rate_factor
from lingo.learner.state import EMA, ONE_DEVICE, Learner, Placement, Slots, TrainState, map_shapes
from lingo.learner.task import (
    LOSS,
    Batch,
    CheckedBatch,
    Task,
    check_coefficients,
    check_denominators,
    check_losses,
    check_predictions,
    untrained_error,
)
from lingo.ops import random
from lingo.ops.add_in_order import add_in_order
from lingo.ops.scan import accumulate
from lingo.optim.optimizer import Update, Weight, select

IS_CAUSAL = "is_causal"
"""The prefix of the names of `decode_batch`'s results about layers."""


@add_in_order()
def train_step(
    learner: Learner, state: TrainState, batch: Batch, place: Placement = ONE_DEVICE
) -> tuple[TrainState, dict[str, Any]]:
    """Does one training step, and returns the new state and the report of `update`.

    `batch` is this replica's part of the step's batch, {name: [B, ...] tensor}; its `rows`, int32
    [B], are the indices of these examples in the step's batch. If the learner has several tasks,
    the step is one of the batch's task, and changes no tensor of the other tasks.
    """
    own = learner.select(batch)
    if own.task is learner.task:
        return _train_task(learner, state, batch, place)
    after, report = _train_task(own, state.part(own), batch, place)
    return state.join(after), _name_task(report, marked_task(batch) or "")


def _train_task(
    learner: Learner, state: TrainState, batch: Batch, place: Placement
) -> tuple[TrainState, dict[str, Any]]:
    with tf.name_scope("loss_denominators"):
        denominators = place.total(loss_denominators(learner.task, batch))
    sums = place.total(batch_sums(learner, state, batch, denominators, place))
    with tf.name_scope("update"), place.update_scope():
        after, report = place.compute(lambda: update(learner, state, sums, place))
        if place.gathers_weights:  # outside `update`: exchanges may be stateful, as in `total`
            after = after._replace(weights=place.gather_weights(after.weights))
        return after, report


def _name_task(report: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Returns a report of `update` with the name of its task in the tags of losses and metrics.

    The loss terms are metrics, too, so that reports show each task's mean since the last report.
    """
    scalars, states = dict(report["scalars"]), dict[str, Any]()
    for tag in report["scalars"]:
        if tag.startswith(LOSS) and tag != f"{LOSS}total":
            named = f"{LOSS}{task}/{tag.removeprefix(LOSS)}"
            scalars[named] = scalars.pop(tag)
            states[named] = {"sum": scalars[named], "weight": tf.ones_like(scalars[named])}
    states |= {f"{task}/{name}": state for name, state in report["metric_states"].items()}
    return {**report, "scalars": scalars, "metric_states": states}


def loss_denominators(task: Task, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns `task.loss_denominators` of a part of the step's batch: term -> float32 scalar."""
    with refuse_hidden_state():  # not around the runtime's sums: their operations may be stateful
        denominators = task.loss_denominators(CheckedBatch(batch))
    check_denominators(task, denominators)
    return denominators


def batch_sums(
    learner: Learner,
    state: TrainState,
    batch: Batch,
    denominators: Mapping[str, tf.Tensor],
    place: Placement = ONE_DEVICE,
) -> dict[str, Any]:
    """Returns `local_sums` of this replica's part of the batch, added over accumulation steps.

    `denominators` are sums over the whole batch of all replicas, term -> float32 scalar.
    """
    task, key = learner.task, random.fold(random.root_key(learner.seed), state.step)
    frozen = find_frozen(learner)
    weights = state.weights
    if place.keeps_parts:
        with tf.name_scope("update"):  # gathering the weights completes the previous step's update
            weights = place.weights_for_layers(weights)

    def part(batch: Batch) -> dict[str, Any]:
        return local_sums(
            task, weights, state.state, batch, denominators, key, place, frozen=frozen
        )

    num_parts = learner.accumulation_steps
    return place.compute(lambda: accumulate_sums(part, batch, num_parts))


@refuse_hidden_state()
def local_sums(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    denominators: Mapping[str, tf.Tensor],
    key: random.Key,
    place: Placement = ONE_DEVICE,
    *,
    frozen: Collection[str] = (),
) -> dict[str, Any]:
    """Computes gradients, losses and statistics of a part of the batch, to be added over all parts.

    Args:
        task: the model and its losses.
        weights: program path -> float32 [*stacked axes, ...].
        state: program path -> float32 [*stacked axes, ...], moving statistics, a loss scale.
        batch: {name: [B, ...] tensor}, a part of the step's batch.
        denominators: loss term -> float32 scalar, the term's divisor for the whole batch.
        key: random key of (seed, step).
        place: the runtime's placement of tensors.
        frozen: program paths of weights that no step changes, so that they need no gradient.

    Returns:
        `gradients` of `losses["total"]`: program path -> float32 of the weight's shape;
        `losses`: term -> float32 scalar, see `normalize_losses`;
        `batch_statistics`: program path of a state -> {"sum": float32 [*stacked axes, ...],
            "weight": float32 [*stacked axes]};
        `metrics`: name -> {"sum", "weight"}, side metrics of layers;
        `arrays`: name -> float32 scalar, the sum of each floating-point array of the batch.

    Raises:
        ParamError: if the loss does not depend on a weight that is not frozen.
    """
    unused: set[str] = set()
    call = {
        "state": state,
        "training": True,
        "key": key,
        "rows": batch["rows"],
        "unused_weights": unused,
        "frozen_weights": frozen,
        **place.call_fields(),
    }
    with tf.name_scope("local"), tf.GradientTape() as tape:
        tape.watch(weights)
        sums, sides = context.apply(task, weights, CheckedBatch(batch), method="loss", call=call)
        check_losses(task, sums)
        losses = normalize_losses(task, sums, sides.losses, denominators)
        scale = state.get(loss_scale.SCALE)
        target = losses["total"] if scale is None else losses["total"] * scale
    gradients = tape.gradient(target, dict(weights))
    unused.update(where for where, gradient in gradients.items() if gradient is None)
    if untrained := unused.difference(frozen):
        raise untrained_error(task, min(untrained))
    gradients = {
        where: tf.zeros_like(weights[where]) if g is None else tf.convert_to_tensor(g)
        for where, g in gradients.items()
    }
    if scale is not None:
        gradients = {where: gradient / scale for where, gradient in gradients.items()}
    return {
        "gradients": gradients,
        "losses": losses,
        "batch_statistics": sides.batch_statistics,
        "metrics": sides.metrics,
        "arrays": finite.array_sums(batch),
    }


def find_frozen(learner: Learner) -> set[str]:
    """Returns the program paths of the weights that no step changes."""
    return {
        where
        for where, weight in learner.weights().items()
        if not any(learner.optimizer.trainable_layers(weight))
    }


def normalize_losses(
    task: Task,
    sums: Mapping[str, tf.Tensor],
    side_losses: Mapping[str, tf.Tensor],
    denominators: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Returns each loss term divided by its denominator, and the `total` that training minimizes.

    Arguments and result are {term: float32 scalar}. `sums` are the task's terms and `side_losses`
    the layers' terms, summed over a part of the batch. A denominator is the term's divisor for the
    whole batch; a term without a denominator is divided by the denominator of `examples`. `total`
    is the sum of coefficient * term. Raises ParamError if two losses have the same name, or if
    a loss is called `total`.
    """
    if twice := sums.keys() & side_losses.keys() | {"total"} & (sums.keys() | side_losses.keys()):
        raise ParamError(
            f"{definition_line(task.loss)}: two losses have the name {min(twice)!r}: rename the"
            " layer's, or the task's"
        )
    losses = {
        term: tf.math.divide_no_nan(
            value, denominators[term if term in denominators else "examples"]
        )
        for term, value in (*sums.items(), *side_losses.items())
    }
    check_coefficients(task, losses)
    coefficients = task.coefficients()
    total = tf.add_n([coefficients.get(t, 1.0) * value for t, value in sorted(losses.items())])
    return losses | {"total": total}


def accumulate_sums(part: Callable[[Batch], Any], batch: Batch, num_parts: int) -> Any:
    """Returns the sum of `part` over the parts of a batch, computed one after the other.

    `part` maps some neighbouring examples of the batch, {name: [B / num_parts, ...] tensor}, to
    tensors of any shape. The batch, {name: [B, ...] tensor}, includes `rows`. Raises ValueError if
    `num_parts` does not divide B.
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


@refuse_hidden_state()
def update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement = ONE_DEVICE
) -> tuple[TrainState, dict[str, Any]]:
    """Updates the state from the sums of one step, unless a value of the step is not finite.

    A skipped update keeps weights, slots and statistics; the step counts as done: `step` advances.
    The checked values are losses, gradients and their norm, batch statistics, and updated tensors.
    `sums` is the result of `local_sums`, added over all parts of the batch.

    Returns:
        The state after the step, and a report:
        `scalars`: TensorBoard tag -> float32 scalar;
        `metric_states`: metric name -> {"sum", "weight"}, side metrics of layers;
        `statistics`: program path -> float32 [*stacked axes, ...], the moving statistics to plot;
        `first_non_finite`: int32 scalar, -1 if the update was applied, or was skipped because the
            loss scale was too large; else the index in `finite.quantity_names` of the first
            quantity that is not finite.
    """
    before = state.weights if place.keeps_parts else place.shard_for_update(state.weights)
    old = (before if place.gathers_weights else state.weights, state.slots, state.state)
    weights = {where: place.update_weight(weight) for where, weight in learner.weights().items()}
    gradients = place.shard_for_update(sums["gradients"])
    gradients = _zero_frozen(learner, gradients, place)
    squares = place.total_of_parts(finite.square_sums(weights, gradients))
    grad_norm = tf.sqrt(tf.add_n([tf.reduce_sum(layers) for layers in squares.values()]))
    clipped = learner.optimizer.clip(weights, gradients, grad_norm)
    rates = rate_factor.lower_rates(state.state, learner.optimizer.rates(state.step))
    moved = _apply_gradients(learner, weights, before, state, clipped, rates, place)
    new = _average_statistics(learner, state, moved, sums["batch_statistics"], place)
    check = finite.check_finite(
        learner, sums=sums, squares=squares, norm=grad_norm, new=new, total=place.total_of_parts
    )
    after = TrainState(state.step + 1, *place.select(check.is_finite, new, old))
    scalars = {f"loss/{term}": value for term, value in sums["losses"].items()}
    scalars[finite.GRAD_NORM] = grad_norm
    scalars |= {f"learner/{tag}": rate for tag, rate in rates.items()}
    first_non_finite, scale = check.first_non_finite, state.state.get(loss_scale.SCALE)
    if scale is not None:
        is_finite = tf.math.is_finite(grad_norm)
        after.state.update(loss_scale.next_states(state.state, is_finite))
        is_too_large = ~is_finite & tf.math.is_finite(sums["losses"]["total"]) & (scale > 1.0)
        first_non_finite = tf.where(is_too_large, -1, first_non_finite)
        scalars["learner/loss_scale"] = scale
    statistics = {
        where: after.state[where] for where, spec in learner.task.states().items() if spec.shown
    }
    return after, {
        "scalars": scalars,
        "metric_states": sums["metrics"],
        "statistics": statistics,
        "first_non_finite": first_non_finite,
    }


def _zero_frozen(
    learner: Learner, gradients: Mapping[str, tf.Tensor], place: Placement
) -> dict[str, tf.Tensor]:
    """Returns gradients with zeros for frozen weights, so that frozen weights add to no norm."""
    selected = {}
    for where, weight in learner.weights().items():
        trainable = learner.optimizer.trainable_layers(weight)
        with place.device_scope(where):
            zeros = tf.zeros_like(gradients[where])
        selected[where] = select(weight, trainable, gradients[where], zeros)
    return selected


def _apply_gradients(
    learner: Learner,
    weights: Mapping[str, Weight],
    before: Mapping[str, Any],
    state: TrainState,
    gradients: Mapping[str, Any],
    rates: Mapping[str, Any],
    place: Placement,
) -> tuple[dict[str, Any], Slots]:
    """Returns all weights and slots after the update; `before` are the weights to be updated."""
    optimizer, ema_rate = learner.optimizer, learner.optimizer.ema_rate(state.step)
    slots, after, slots_after = place.slots_for_update(state.slots), {}, {}
    for where, weight in weights.items():
        old = {k: v for k, v in slots[where].items() if k != EMA}
        update = Update(weight, before[where], gradients[where], old, state.step, rates)
        new = optimizer.update(update)
        after[where], kept = new.value, dict(new.slots)
        if ema_rate is not None:
            kept[EMA] = _average(slots[where][EMA], new.value, ema_rate)
        if (columns := weight.row_columns) is not None:  # padding is 0 / 0 if epsilon is 0
            after[where] = columns.without_padding(new.value)
            kept = {
                k: columns.without_padding(v) if v.shape == new.value.shape else v
                for k, v in kept.items()
            }
        slots_after[where] = kept
    return place.shard_for_storage(after), place.slots_for_storage(slots_after)


def _average_statistics(
    learner: Learner,
    state: TrainState,
    moved: tuple[dict[str, Any], Slots],
    batch_statistics: Mapping[str, Any],
    place: Placement,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns the updated weights and slots in `moved`, and the updated moving statistics."""
    weights, slots = moved[0], {where: dict(own) for where, own in moved[1].items()}
    moving, ema_rate = {}, learner.optimizer.ema_rate(state.step)
    for where, spec in learner.task.states().items():
        old = state.state[where]
        if where in batch_statistics and spec.decay is not None:
            total, weight = batch_statistics[where]["sum"], batch_statistics[where]["weight"]
            weight = tf.reshape(weight, [*weight.shape, *[1] * len(spec.shape)])
            mean = tf.math.divide_no_nan(total, weight)
            old = tf.where(weight > 0, spec.decay * old + (1.0 - spec.decay) * mean, old)
        moving[where] = old
    if ema_rate is not None:
        values = place.shard_for_update(moving)
        for where, value in values.items():
            slots[where] = {EMA: _average(state.slots[where][EMA], value, ema_rate)}
    return weights, slots, {**state.state, **moving}


def _average(average: tf.Tensor, value: tf.Tensor, rate: float | tf.Tensor) -> tf.Tensor:
    return average + rate * (value - average)


@refuse_hidden_state()
def evaluate_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    place: Placement = ONE_DEVICE,
) -> Any:
    """Returns the metric states of a batch, side metrics of layers included; uses no randomness.

    Arguments are as for `local_sums`. A state is {"sum", "weight"}, float64 scalars, or has other
    float64 entries of fixed shapes.
    """
    call = {"state": state, "rows": batch["rows"], **place.call_fields()}
    method, checked = "evaluation_metrics", CheckedBatch(batch)
    states, sides = context.apply(task, weights, checked, method=method, call=call)
    return tf.nest.map_structure(lambda v: tf.cast(v, tf.float64), {**states, **sides.metrics})


@refuse_hidden_state()
def predict_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    place: Placement = ONE_DEVICE,
) -> dict[str, tf.Tensor]:
    """Returns `task.predict` of a batch, with the batch's `weights`: {name: [B, ...]}; not random.

    Arguments are as for `local_sums`. Float types of 16 bits become float32.
    """
    call = {"state": state, "rows": batch["rows"], **place.call_fields()}
    checked = CheckedBatch(batch)
    predictions, _ = context.apply(task, weights, checked, method="predict", call=call)
    check_predictions(task, predictions, num_examples=batch["rows"].shape[0])
    return {
        name: tf.cast(value, tf.float32) if value.dtype in (tf.bfloat16, tf.float16) else value
        for name, value in (predictions | {"weights": batch["weights"]}).items()
    }


@refuse_hidden_state()
def decode_batch(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Batch,
    decoding: Decoding,
    key: random.Key,
    place: Placement = ONE_DEVICE,
) -> dict[str, tf.Tensor]:
    """Returns `task.decode` of a batch of prompts; only the choice of tokens, by `key`, is random.

    Arguments are as for `local_sums`; the batch includes `rows`. The result also has
    `is_causal/<path>`, int32 [B], for each layer without a decoding `step`: 0 if the layer depends
    on later tokens.
    """
    call = {"state": state, "rows": batch["rows"], "key": key, **place.call_fields()}
    texts, sides = context.apply(task, weights, batch, decoding, method="decode", call=call)
    return texts | {f"{IS_CAUSAL}/{where}": value for where, value in sides.is_causal.items()}


# ---- graphs traced from shapes alone, without a runtime's loops, parts or replicas


def step_graph(learner: Learner, specs: Specs, place: Placement = ONE_DEVICE) -> tf.Graph:
    """Returns the graph of one training step; state and batch (of `specs`) are placeholders."""

    def step(state: TrainState, batch: Mapping[str, tf.Tensor]) -> Any:
        return train_step(learner, state, batch, place)

    return graph_of(step, learner, specs)


def graph_of(function: Callable[..., Any], learner: Learner, specs: Specs) -> tf.Graph:
    """Returns the graph of function(state, batch), with placeholders for the learner's tensors."""
    return trace_function(function, learner, specs).graph


def trace_function(function: Callable[..., Any], learner: Learner, specs: Specs) -> Any:
    """Returns function(state, batch), traced for a learner's state and a batch of these specs."""
    state = map_shapes(learner, lambda shape: tf.TensorSpec(shape, tf.float32))
    state = state._replace(step=tf.TensorSpec([], tf.int32))
    batch = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in specs.items()}
    return tf.function(function, autograph=False).get_concrete_function(state, batch)
