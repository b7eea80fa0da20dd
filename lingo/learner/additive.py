"""Whether the losses and metrics of a task are sums over examples, as its contract says.

Of twice as many examples, all alike, a sum is twice as large, and a mean is the same:

    loss [B, T]  --reduce_sum-->   []     B * T,  2 * B * T
    loss [B, T]  --reduce_mean-->  []     1,      1

So the task is traced for B and for 2 * B examples, without weights or data. Only the operations
after the last tensors that grow with the batch are computed, with ones in place of these tensors.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.data.array_spec import Specs
from lingo.layers import context
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.learner.state import Learner, Placement, TrainState
from lingo.learner.step import evaluate_batch, graph_of
from lingo.learner.task import Batch, CheckedBatch, Task, check_denominators, check_losses
from lingo.ops import random

_MAX_SIZE = 2**22  # elements of the tensors that are replaced; what needs more is not checked
_TOLERANCE = 1e-3  # relative: sums are float32

PYTHON_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a user's model that computes batches of one size only."""

_Pair: TypeAlias = tuple[Any, Any]
"""A tensor of the trace for B examples, and the same of the trace for 2 * B."""


def check_sums(learner: Learner, specs: Specs, place: Placement) -> None:
    """Raises ParamError if a loss, a denominator or a metric's state is not a sum over examples.

    Models of lingo's own classes are left out: lingo's tests check those. Not checked are values
    that depend on the batch in a loop over layers, and models that compute batches of one size
    only. `specs` are name -> (shape, dtype) of a batch.
    """
    if all(is_lingos(type(layer)) for layer in learner.task.tree()):
        return
    once = _trace(learner, specs, place)
    try:
        twice = _trace(learner, _double(specs), place)
    except (*PYTHON_ERRORS, LingoError, tf.errors.OpError):  # it computes one size of batches only
        return
    if once.keys() != twice.keys():
        return
    ends = {name: _boundary((once[name], twice[name])) for name in once}
    names = [name for name, pairs in ends.items() if _is_small(pairs)]
    fed = [pair for name in names for pair in ends[name]]
    try:
        values = [
            _compute([trace[name] for name in names], [pair[i] for pair in fed])
            for i, trace in enumerate((once, twice))
        ]
    except tf.errors.OpError:  # an operation that refuses ones, waits for others, needs a GPU
        return
    for name, one, two in zip(names, *values, strict=True):
        _check_sum(learner.task, name, one, two)


def _double(specs: Specs) -> Specs:
    return {name: ((2 * size, *rest), dtype) for name, ((size, *rest), dtype) in specs.items()}


def _trace(learner: Learner, specs: Specs, place: Placement) -> dict[str, tf.Tensor]:
    """Returns what a task sums over a batch: name in messages -> tensor of a graph."""
    names: list[str] = []

    def sums(state: TrainState, batch: Batch) -> list[Any]:
        named = _losses(learner, state, batch, place) | _metrics(learner, state, batch, place)
        names.extend(named)
        return list(named.values())

    return dict(zip(names, graph_of(sums, learner, specs).outputs, strict=True))


def _losses(
    learner: Learner, state: TrainState, batch: Batch, place: Placement
) -> dict[str, tf.Tensor]:
    key = random.fold(random.root_key(learner.seed), state.step)
    call = {"state": state.state, "training": True, "key": key, "rows": batch["rows"]}
    with refuse_hidden_state():
        denominators = learner.task.loss_denominators(CheckedBatch(batch))
        check_denominators(learner.task, denominators)
        losses, sides = context.apply(
            learner.task,
            state.weights,
            CheckedBatch(batch),
            method="loss",
            call=call | place.call_fields(),
        )
    check_losses(learner.task, losses)
    return {f"the denominator {name!r}": value for name, value in denominators.items()} | {
        f"the loss {name!r}": value for name, value in (losses | sides.losses).items()
    }


def _metrics(
    learner: Learner, state: TrainState, batch: Batch, place: Placement
) -> dict[str, tf.Tensor]:
    states = evaluate_batch(learner.task, state.weights, state.state, batch, place)
    return {
        f"{part!r} of the metric {name!r}": value
        for name, metric in states.items()
        for part, value in metric.items()
    }


def _boundary(end: _Pair) -> list[_Pair]:
    """Returns the last tensors before a result whose size depends on the batch, and placeholders.

    Empty if the two traces differ in more than sizes.
    """
    found: list[_Pair] = []
    seen: set[str] = set()
    following = [end]
    while following:
        one, two = following.pop()
        if one.name in seen:
            continue
        seen.add(one.name)
        if one.op.type != two.op.type or len(one.op.inputs) != len(two.op.inputs):
            return []
        if one.op.type == "Placeholder" or _differ(one.shape, two.shape):
            found.append((one, two))
        else:
            following.extend(zip(one.op.inputs, two.op.inputs, strict=True))
    return found


def _differ(one: tf.TensorShape, two: tf.TensorShape) -> bool:
    return one.is_fully_defined() and two.is_fully_defined() and one != two


def _is_small(pairs: list[_Pair]) -> bool:
    """Returns whether tensors can be replaced by ones, which need not much memory."""
    tensors = [tensor for pair in pairs for tensor in pair]
    if not all(t.shape.is_fully_defined() and (t.dtype.is_bool or _is_number(t)) for t in tensors):
        return False
    return sum(math.prod(tensor.shape) for tensor in tensors) <= _MAX_SIZE


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer


def _compute(ends: list[Any], ones: list[Any]) -> list[np.ndarray]:
    """Returns the values of some tensors of a graph if others are ones."""
    if not ends:
        return []
    definition = ends[0].graph.as_graph_def()
    for node in definition.node:  # without what is only printed or asserted, which needs the batch
        del node.input[sum(not name.startswith("^") for name in node.input) :]
    fed = {t.name: np.ones(t.shape, t.dtype.as_numpy_dtype) for t in ones}
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph, config=config) as run:
        tf.import_graph_def(definition, name="")
        return run.run([end.name for end in ends], fed)


def _check_sum(task: Task, name: str, one: np.ndarray, two: np.ndarray) -> None:
    """Raises ParamError if the second value is not twice the first."""
    if np.shape(one) != np.shape(two) or not np.isfinite([one, two]).all():
        return
    scale = np.maximum(np.abs(two), np.abs(2 * one))
    if (np.abs(two - 2 * one) <= _TOLERANCE * scale).all():
        return
    first, second = np.sum(one), np.sum(two)
    change = (
        f"{second / first:.3g} times as large, not 2 times" if first else f"{second:.3g}, not 0"
    )
    method = task.metrics if "metric" in name else task.loss
    where = definition_line(task.loss_denominators if "denominator" in name else method)
    raise ParamError(
        f"{where}: {type(task).__name__}: {name} is not a sum over examples: of twice as many, it"
        f" is {change}.\n"
        "Return tf.reduce_sum(weights * values), not a mean: lingo divides a loss by its"
        " `loss_denominators`, and the 'sum' of a metric by its 'weight', over the whole batch."
    )
