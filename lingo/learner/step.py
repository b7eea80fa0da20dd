"""The training step as three pure functions of tensors; a runtime only places the tensors.

    denominators = total(loss_denominators(batch))             # from the batch alone
    sums = total(batch_sums(state, batch, denominators))       # gradients, losses, ...
    state, report = update(state, sums)                        # on each replica, all or its shard

A task with phases (`lingo/learner/phase.py`) does the last two for each of its phases, in turn.

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
from lingo.learner import finite, loss_scale
from lingo.learner.placement import ONE_DEVICE, Placement
from lingo.learner.state import Learner, TrainState, map_shapes
from lingo.learner.table_rows import RecordedReads
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
from lingo.learner.update import join_reports, update
from lingo.ops import random
from lingo.ops.add_in_order import add_in_order
from lingo.ops.scan import accumulate

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
    after, reports = state, []
    for own in learner.in_turn():
        before = after._replace(step=state.step)
        sums = _total_sums(batch_sums(own, before, batch, denominators, place), place)
        after, report = _update(own, before, sums, place)
        reports.append(report)
    return after, join_reports(reports)


def _total_sums(sums: Mapping[str, Any], place: Placement) -> dict[str, Any]:
    """Returns the results of `batch_sums` over all replicas: totals, and all lookups of tables."""
    sums = dict(sums)
    row_gradients = place.join_examples(sums.pop("row_gradients"))
    return {**place.total(sums), "row_gradients": row_gradients}


def _update(
    learner: Learner, state: TrainState, sums: Mapping[str, Any], place: Placement
) -> tuple[TrainState, dict[str, Any]]:
    with tf.name_scope("update"), place.update_scope():
        after, report = place.compute(lambda: update(learner, state, sums, place))
        if place.gathers_weights:  # outside `update`: exchanges may be stateful, as in `total`
            moved = {where: after.weights[where] for where in learner.weights()}
            after = after._replace(weights=after.weights | place.gather_weights(moved))
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

    `denominators` are sums over the whole batch of all replicas, term -> float32 scalar. If the
    learner's phase may not be due, the sums are zeros where it is not, and `due`, a float32 scalar,
    is 0 there, else 1.
    """
    key, frozen = random.fold(random.root_key(learner.seed), state.step), find_frozen(learner)
    moved = learner.weights().keys()
    if learner.phase is not None:
        key = random.fold(key, random.text_hash(learner.phase))
    weights = state.weights
    if place.keeps_parts:
        with tf.name_scope("update"):  # gathering the weights completes the previous step's update
            weights = place.weights_for_layers(weights)

    def sums() -> dict[str, Any]:
        noisy = weights
        if learner.weight_noise is not None:
            with tf.name_scope("weight_noise"):
                noisy = learner.weight_noise.add(weights, key, state.step)

        def part(batch: Batch) -> dict[str, Any]:
            return local_sums(
                *(learner.task, noisy, state.state, batch, denominators, key, place),
                frozen=frozen,
                phase=learner.phase,
                moved=moved,
            )

        return accumulate_sums(part, batch, learner.accumulation_steps)

    phase = learner.task.phases().get(learner.phase or "")
    if phase is None or phase.is_always_due:
        return place.compute(sums)
    due = phase.is_due(state.step)
    return place.compute(lambda: _sums_if(due, sums)) | {"due": tf.cast(due, tf.float32)}


def _sums_if(due: tf.Tensor, sums: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns `sums()` if the bool scalar `due` is true, else zeros; computes nothing for them."""
    if tf.executing_eagerly():  # the shapes of the zeros come from a trace
        return tf.function(_sums_if, autograph=False)(due, sums)
    traced: list[dict[str, Any]] = []

    def sums_of_batch() -> dict[str, Any]:
        traced.append(sums())
        return traced[0]

    def zeros() -> dict[str, Any]:
        return tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), traced[0])

    return tf.cond(due, sums_of_batch, zeros)  # traces its first function first


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
    phase: str | None = None,
    moved: Collection[str] | None = None,
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
        frozen: program paths of weights that the step leaves as they are.
        phase: the phase of the task whose loss is computed; None: the task has no phases.
        moved: program paths of the weights whose gradients are wanted; None: all.

    Returns:
        `gradients` of `losses["total"]`: program path -> float32 of the weight's shape, without
            sparse tables;
        `row_gradients`: program path of a sparse table -> `RowGradients` of its lookups;
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
    sources = {k: v for k, v in weights.items() if moved is None or k in moved}
    with tf.name_scope("local"), tf.GradientTape() as tape:
        tape.watch(sources)
        call["table_reads"] = reads = RecordedReads(tape)
        method = "loss" if phase is None else task.phases()[phase].loss
        sums, sides = context.apply(task, weights, CheckedBatch(batch), method=method, call=call)
        check_losses(task, sums, method=method)
        losses = normalize_losses(task, sums, sides.losses, denominators, phase=phase)
        scale = state.get(loss_scale.SCALE)
        target = losses["total"] if scale is None else losses["total"] * scale
    reads.is_complete = True
    found: Any = tape.gradient(target, (sources, reads.rows))
    gradients, row_gradients = found
    row_gradients = reads.gradients(row_gradients, gradients)
    gradients = {where: g for where, g in gradients.items() if where not in row_gradients}
    unused.update(where for where, gradient in gradients.items() if gradient is None)
    if untrained := unused.difference(frozen):
        raise untrained_error(task, min(untrained))
    gradients = _fill_gradients(gradients, weights)
    if scale is not None:
        gradients = {where: gradient / scale for where, gradient in gradients.items()}
        row_gradients = {where: g.divide(scale) for where, g in row_gradients.items()}
    return {
        "gradients": gradients,
        "row_gradients": row_gradients,
        "losses": losses,
        "batch_statistics": sides.batch_statistics,
        "metrics": sides.metrics,
        "arrays": finite.array_sums(batch),
    }


def _fill_gradients(
    gradients: Mapping[str, Any], weights: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """Returns dense gradients of weights, with zeros for None."""
    return {
        where: tf.zeros_like(weights[where]) if g is None else tf.convert_to_tensor(g)
        for where, g in gradients.items()
    }


def find_frozen(learner: Learner) -> set[str]:
    """Returns the program paths of the weights that no step changes."""
    trained = {
        where
        for where, weight in learner.weights().items()
        if any(learner.optimizer.trainable_layers(weight))
    }
    return learner._replace(phase=None).weights().keys() - trained


def normalize_losses(
    task: Task,
    sums: Mapping[str, tf.Tensor],
    side_losses: Mapping[str, tf.Tensor],
    denominators: Mapping[str, tf.Tensor],
    *,
    phase: str | None = None,
) -> dict[str, tf.Tensor]:
    """Returns each loss term divided by its denominator, and the `total` that training minimizes.

    Arguments and result are {term: float32 scalar}. `sums` are the task's terms and `side_losses`
    the layers' terms, summed over a part of the batch. A denominator is the term's divisor for the
    whole batch; a term without a denominator is divided by the denominator of `examples`. `total`
    is the sum of coefficient * term. Raises ParamError if two losses have the same name, or if
    a loss is called `total`.

    The terms of a phase get its name in front, in the result as in `denominators`.
    """
    if twice := sums.keys() & side_losses.keys() | {"total"} & (sums.keys() | side_losses.keys()):
        raise ParamError(
            f"{definition_line(task.loss)}: two losses have the name {min(twice)!r}: rename the"
            " layer's, or the task's"
        )
    front, others = "" if phase is None else f"{phase}/", set(task.phases())
    terms = {f"{front}{term}": value for term, value in (*sums.items(), *side_losses.items())}
    losses = {
        term: tf.math.divide_no_nan(
            value, denominators[term if term in denominators else "examples"]
        )
        for term, value in terms.items()
    }
    check_coefficients(task, losses, others=others - {phase} if phase else ())
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
