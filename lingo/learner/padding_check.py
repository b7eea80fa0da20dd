"""Whether examples of weight 0 change what a task sums, which its contract forbids.

    batch              losses, denominators, metrics, gradients
    batch + padding    the same

Examples of weight 0 fill up the last batch of an evaluation, and batches that devices cannot share
equally. A loss that forgets `batch["weights"]` counts them as examples.

Axes: B examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.data.input import Input
from lingo.layers import context
from lingo.layers.stacks.micro_batches import examples_together
from lingo.learner.additive import PYTHON_ERRORS
from lingo.learner.padding import pipelines
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.step import evaluate_batch, find_frozen
from lingo.learner.task import Batch, CheckedBatch, Task, check_losses
from lingo.ops import random

_MIN_EXAMPLES = 4
_MAX_LAYERS = 64  # a model with more takes longer than a second to trace
_MAX_PRODUCTS = 2e9  # of a weight and an element of the batch: what a second may compute
_TOLERANCE = 1e-4  # relative to the largest of the values: other shapes round otherwise


def check_padding(learner: Learner, data: Input) -> None:
    """Raises ParamError if examples of weight 0 change a sum of the first examples of an input.

    Models of lingo's own classes are left out, since lingo's tests check those, and models that
    would take longer than about a second.
    """
    task = learner.task
    if all(is_lingos(type(layer)) for layer in task.tree()):
        return
    num, available = num_examples(task), data.num_rows(0)
    if num > available or not _is_cheap(task, data, num):
        return
    batch = {name: np.asarray(v) for name, v in data.batch(0, rows=slice(0, num)).items()}
    state = load_arrays(initial_state(learner))
    frozen = find_frozen(learner)
    try:
        problem = padding_problem(task, state.weights, state.state, batch, frozen=frozen)
    except (*PYTHON_ERRORS, LingoError, tf.errors.OpError):  # it computes one size of batches only
        return
    if problem:
        raise ParamError(problem)


def num_examples(task: Task) -> int:
    """Returns how many examples of a batch to compute, so that padding forms groups of its own."""
    together = examples_together([task], (None, None))
    counts = (layer.p.num_micro_batches for layer in pipelines(task))
    unit = together * math.lcm(*counts)
    return unit * -(-_MIN_EXAMPLES // unit)


def padding_problem(
    task: Task,
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
    batch: Mapping[str, np.ndarray],
    *,
    frozen: set[str],
) -> str:
    """Returns which sum examples of weight 0 change, in a sentence; "" if they change none.

    A loss that is not finite is told instead: no step would change a weight.

    Layers that take statistics over the batch in training count padding, too. With such layers the
    losses are computed as in an evaluation, by moving statistics, and gradients are left out.

    Args:
        task: the model and its losses.
        weights: program path -> float32 [*stacked axes, ...].
        state: program path -> float32 [*stacked axes, ...], moving statistics.
        batch: {name: [B, ...]} arrays of some examples, with `rows` and `weights`.
        frozen: program paths of weights that no step changes.
    """
    weights = {where: tf.convert_to_tensor(value) for where, value in weights.items()}
    counted = any(layer.batch_requirements().examples_counted is not None for layer in task.tree())

    def sums(batch: Batch) -> dict[str, Any]:
        if counted:
            _, named = _losses(task, weights, state, batch, {})
        else:
            named = _trained_sums(task, weights, state, batch, frozen)
        return named | _metrics(task, weights, state, batch)

    compute = tf.function(sums, autograph=False, reduce_retracing=False)
    alone, padded = (
        {name: np.asarray(value, np.float64) for name, value in compute(tensors).items()}
        for tensors in (_to_tensors(batch), _to_tensors(_pad(batch)))
    )
    for name, value in alone.items():
        if name.startswith("the loss") and not np.isfinite(value):
            return _describe_not_finite(task, name, float(value), batch)
        if _differs(value, padded[name]):
            return _describe(task, name, value, padded[name], len(batch["rows"]))
    return ""


def _is_cheap(task: Task, data: Input, num: int) -> bool:
    """Returns whether the check of `num` examples takes less than about a second."""
    specs = data.specs().values()
    elements = num * max(math.prod(shape[1:]) for shape, _ in specs)
    weights = sum(spec.size for spec in task.weights().values())
    return len([*task.tree()]) <= _MAX_LAYERS and elements * weights <= _MAX_PRODUCTS


def _pad(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch with its examples again and zeros, both of weight 0: either is padding."""
    padded = {name: np.concatenate([a, a, np.zeros_like(a)]) for name, a in batch.items()}
    padded["weights"][len(batch["weights"]) :] = 0.0
    return padded | {"rows": np.arange(len(padded["rows"]), dtype=padded["rows"].dtype)}


def _to_tensors(batch: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in batch.items()}


def _trained_sums(
    task: Task, weights: Any, state: Any, batch: Batch, frozen: set[str]
) -> dict[str, Any]:
    """Returns the losses, denominators and gradients of a training step, by name in messages.

    Losses of layers are left out: a layer need not know which examples are padding.
    """
    call = {"training": True, "key": random.root_key(0), "unused_weights": set[str]()}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses, named = _losses(task, weights, state, batch, call)
        total = tf.add_n([task.coefficients().get(k, 1.0) * v for k, v in losses.items()])
    gradients = tape.gradient(total, dict(weights))
    return named | {
        f"the gradient of {name!r}": tf.convert_to_tensor(value)
        for name, value in gradients.items()
        if value is not None and name not in frozen
    }


def _losses(
    task: Task, weights: Any, state: Any, batch: Batch, call: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the losses by term; and these and denominators by name in messages."""
    fields = {"state": state, "rows": batch["rows"], **call}
    losses, _ = context.apply(task, weights, CheckedBatch(batch), method="loss", call=fields)
    check_losses(task, losses)
    named = {f"the loss {name!r}": value for name, value in losses.items()}
    denominators = task.loss_denominators(CheckedBatch(batch))
    named |= {f"the denominator {name!r}": value for name, value in denominators.items()}
    return losses, named


def _metrics(task: Task, weights: Any, state: Any, batch: Batch) -> dict[str, Any]:
    return {
        f"{part!r} of the metric {name!r}": value
        for name, metric in evaluate_batch(task, weights, state, batch).items()
        for part, value in metric.items()
    }


def _differs(alone: np.ndarray, padded: np.ndarray) -> bool:
    if alone.shape != padded.shape:  # an entry for each example, which nothing adds up
        return False
    if not np.isfinite(alone).all():
        return False
    if not np.isfinite(padded).all():
        return True
    scale = max(np.abs(alone).max(initial=0.0), np.abs(padded).max(initial=0.0))
    return bool(np.abs(padded - alone).max(initial=0.0) > _TOLERANCE * scale)


def _describe_not_finite(
    task: Task, name: str, value: float, batch: Mapping[str, np.ndarray]
) -> str:
    floats = {k: array for k, array in batch.items() if array.dtype.kind == "f"}
    wrong = [repr(k) for k, array in floats.items() if not np.isfinite(array).all()]
    why = f"; so is {wrong[0]} of the batch" if wrong else ""
    return (
        f"{definition_line(task.loss)}: {type(task).__name__}: {name} of the first"
        f" {len(batch['rows'])} examples is {value:g} before the first step{why}"
    )


def _describe(task: Task, name: str, alone: np.ndarray, padded: np.ndarray, num: int) -> str:
    method = task.metrics if "metric" in name else task.loss
    first, second = float(np.sum(alone)), float(np.sum(padded))
    change = f"from {first:.6g} to {second:.6g}" if first != second else "in its elements"
    return (
        f"{definition_line(method)}: {type(task).__name__}: {2 * num} examples of weight 0 after"
        f" {num} others change {name} {change}.\n"
        "They are padding and count for nothing. Multiply what is summed by batch['weights'], as in"
        " tf.reduce_sum(batch['weights'] * errors); tf.where leaves out values that are not finite."
    )
