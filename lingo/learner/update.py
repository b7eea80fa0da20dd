"""The update of a step: clipped gradients move weights and slots, unless a value is not finite."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.learner import finite, loss_scale, part_count, rate_factor
from lingo.learner.phase import count_path
from lingo.learner.placement import ONE_DEVICE, Placement
from lingo.learner.state import EMA, Learner, Slots, TrainState
from lingo.learner.table_rows import UniqueRows, unique_rows
from lingo.metrics.metric import add_states
from lingo.optim.optimizer import Update, Weight, select

_TOTAL = "loss/total"


@refuse_hidden_state()
def update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement = ONE_DEVICE
) -> tuple[TrainState, dict[str, Any]]:
    """Updates the state from the sums of one step, unless a value of the step is not finite.

    A skipped update keeps weights, slots and statistics; the step counts as done: `step` advances.
    The checked values are losses, gradients and their norm, batch statistics, and updated tensors.
    `sums` is the result of `local_sums`, added over all parts of the batch. The learner of a phase
    changes only what the phase moves, and nothing where it is not due.

    Returns:
        The state after the step, and a report:
        `scalars`: TensorBoard tag -> float32 scalar;
        `metric_states`: metric name -> {"sum", "weight"}, side metrics of layers; of a phase also
            its loss terms and the norm of its gradients, of weight 0 where it is not due;
        `statistics`: program path -> float32 [*stacked axes, ...], the moving statistics to plot;
        `first_non_finite`: int32 scalar, -1 if the update was applied, or was skipped because the
            loss scale was too large; else the index in `finite.quantity_names` of the first
            quantity that is not finite;
        `num_quantities`: int32 scalar, the number of these quantities.
    """
    weights = {where: place.update_weight(weight) for where, weight in learner.weights().items()}
    kept = {where: state.weights[where] for where in weights}
    before = kept if place.keeps_parts else place.shard_for_update(kept)
    slots = {where: state.slots[where] for where in learner.slots()}
    tables, row_gradients = unique_rows(sums["row_gradients"])
    gradients = place.shard_for_update(sums["gradients"]) | row_gradients
    gradients = _zero_frozen(learner, gradients, place)
    squares = place.total_of_parts(finite.square_sums(weights, gradients))
    grad_norm = tf.sqrt(tf.add_n([tf.reduce_sum(layers) for layers in squares.values()]))
    clipped = learner.optimizer.clip(weights, gradients, grad_norm)
    rates = rate_factor.lower_rates(state.state, learner.optimizer.rates(state.step))
    moved = _apply_gradients(learner, weights, before, state, clipped, rates, place, tables)
    new = _average_statistics(learner, state, moved, sums["batch_statistics"], place)
    check = finite.check_finite(
        learner, sums=sums, squares=squares, norm=grad_norm, new=new, total=place.total_of_parts
    )
    due = sums["due"] > 0 if "due" in sums else None
    applied = check.is_finite if due is None else check.is_finite & due
    old = (before if place.gathers_weights else kept, slots, state.state)
    weights, slots, states = _select(applied, new, old, tables, place)
    states = {**states, **_count_step(learner, state, tf.math.is_finite(grad_norm), due)}
    after = TrainState(
        state.step + 1, {**state.weights, **weights}, {**state.slots, **slots}, states
    )
    scalars = {f"learner/{tag}": rate for tag, rate in rates.items()}
    return after, _report(learner, state, after, sums, check, grad_norm, scalars)


def _count_step(
    learner: Learner, state: TrainState, is_finite: tf.Tensor, due: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Returns the states of loss scale and phase after a step.

    `is_finite`, a bool scalar, says whether its gradients were finite; `due`, a bool scalar,
    whether the learner's phase was due. If it is None, the phase is always due.
    """
    states: dict[str, tf.Tensor] = {}
    if loss_scale.SCALE in state.state:
        states |= loss_scale.next_states(state.state, is_finite)
    if learner.whole is not None:
        states |= part_count.next_states(learner.whole, learner.task, state.state)
    if due is None:
        return states
    where = count_path(learner.phase or "")
    states[where] = state.state[where] + 1.0
    return {where: tf.where(due, value, state.state[where]) for where, value in states.items()}


def _report(
    learner: Learner,
    before: TrainState,
    after: TrainState,
    sums: Mapping[str, Any],
    check: finite.FiniteCheck,
    grad_norm: tf.Tensor,
    scalars: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the report of `update`; `scalars` are the learning rates by tag."""
    losses, scale = sums["losses"], before.state.get(loss_scale.SCALE)
    first_non_finite, metrics = check.first_non_finite, dict(sums["metrics"])
    terms = {f"loss/{term}": value for term, value in losses.items()}
    scalars = {finite.GRAD_NORM: grad_norm, _TOTAL: losses["total"], **scalars}
    if learner.phase is None:
        scalars |= terms
    else:
        del terms[_TOTAL]
        weight = tf.cast(sums["due"] > 0, tf.float32) if "due" in sums else tf.constant(1.0)
        norm = {f"{finite.GRAD_NORM}/{learner.phase}": grad_norm}
        metrics |= {tag: {"sum": v, "weight": weight} for tag, v in (terms | norm).items()}
    if scale is not None:
        is_finite = tf.math.is_finite(grad_norm)
        is_too_large = ~is_finite & tf.math.is_finite(losses["total"]) & (scale > 1.0)
        first_non_finite = tf.where(is_too_large, -1, first_non_finite)
        scalars["learner/loss_scale"] = scale
    return {
        "scalars": scalars,
        "metric_states": metrics,
        "statistics": {k: after.state[k] for k, spec in learner.statistics().items() if spec.shown},
        "first_non_finite": first_non_finite,
        "num_quantities": check.num_quantities,
    }


def join_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the report of a step from the reports of its phases, in order.

    The total loss is a sum over the phases that were due, and the norm is over all their gradients.
    """
    states = [report["metric_states"] for report in reports]
    joined = {
        "scalars": {tag: v for report in reports for tag, v in report["scalars"].items()},
        "metric_states": functools.reduce(add_states, states, {}),
        "statistics": {k: v for report in reports for k, v in report["statistics"].items()},
    }
    if len(reports) > 1:
        totals, norms = ([r["scalars"][tag] for r in reports] for tag in (_TOTAL, finite.GRAD_NORM))
        joined["scalars"][_TOTAL] = tf.add_n(totals)
        joined["scalars"][finite.GRAD_NORM] = tf.sqrt(tf.add_n([norm * norm for norm in norms]))
    first, before = reports[0]["first_non_finite"], reports[0]["num_quantities"]
    for report in reports[1:]:
        own = report["first_non_finite"]
        first = tf.where((first < 0) & (own >= 0), before + own, first)
        before = before + report["num_quantities"]
    return {**joined, "first_non_finite": first}


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
    tables: Mapping[str, UniqueRows],
) -> tuple[dict[str, Any], Slots]:
    """Returns all weights and slots after the update; `before` are the weights to be updated.

    For sparse tables and their slots, it returns only the rows in `tables`, [N, D].
    """
    optimizer, ema_rate = learner.optimizer, learner.optimizer.ema_rate(state.step)
    slots, after = place.slots_for_update(state.slots), {}
    slots_after = dict(slots)
    for where, weight in weights.items():
        old = {k: v for k, v in slots[where].items() if k != EMA}
        num, value = learner.count_updates(where, state), before[where]
        if where in tables:
            value, old = tf.nest.map_structure(tables[where].read, (value, old))
        update = Update(weight, value, gradients[where], old, num, rates)
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
    stored = place.slots_for_storage(slots_after)
    whole = place.shard_for_storage({k: v for k, v in after.items() if k not in tables})
    return {k: whole.get(k, v) for k, v in after.items()}, {k: stored[k] for k in weights}


def _select(
    applied: tf.Tensor, new: Any, old: Any, tables: Mapping[str, UniqueRows], place: Placement
) -> Any:
    """Returns the weights, slots and states of `new` if `applied`, a bool scalar, else of `old`.

    `new` has the rows in `tables` of sparse tables and their slots. A choice between two whole
    tables would copy one: rows are chosen, and then written.
    """

    def without_tables(parts: Any) -> Any:
        return tuple({k: v for k, v in part.items() if k not in tables} for part in parts)

    selected = place.select(applied, without_tables(new), without_tables(old))
    for where, rows in tables.items():

        def write(table: tf.Tensor, changed: tf.Tensor, rows: UniqueRows = rows) -> tf.Tensor:
            return rows.write(table, tf.where(applied, changed, rows.read(table)))

        for part, before, after in zip(selected[:2], old[:2], new[:2], strict=True):
            part[where] = tf.nest.map_structure(write, before[where], after[where])
    return selected


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
    for where, spec in learner.statistics().items():
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
