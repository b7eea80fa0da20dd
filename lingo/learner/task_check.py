"""Checks that a task's losses and metrics are sums over examples, and that padding adds nothing.

Over twice as many identical examples a sum is twice as large, and a mean is the same:

    loss [B, T]  --reduce_sum-->   []     B * T,  2 * B * T
    loss [B, T]  --reduce_mean-->  []     1,      1

So `check_sums` traces the task for B and for 2 * B examples, without weights or data. It replaces
the last tensors that grow with the batch by ones, and computes only the operations after them.

Examples of weight 0 fill up the last batch of an evaluation, and batches that devices cannot share
equally. A loss that forgets `batch["weights"]` counts them as examples. So `check_padding` computes
some examples with and without padding.

Models made only of lingo's classes are left out: lingo's tests check these.

Axes: B examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lingo.config.base.errors import LingoError
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.config.roots.user_line import definition_line, is_lingos
from lingo.data.array_spec import Specs
from lingo.data.input import Input
from lingo.layers import context
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.layers.stacks.micro_batches import examples_together
from lingo.learner.padding import pipelines
from lingo.learner.placement import ONE_DEVICE, Placement
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.learner.step import evaluate_batch, find_frozen, graph_of
from lingo.learner.task import Batch, CheckedBatch, Task, check_denominators, check_losses
from lingo.ops import random

_MAX_SIZE = 2**22  # elements of replaced tensors; a sum that needs more is not checked
_TOLERANCE = 1e-3  # relative: sums are float32

_MIN_EXAMPLES = 4
_MAX_LAYERS = 64  # a model with more takes longer than a second to trace
_MAX_PRODUCTS = 2e9  # weights times elements of the batch: what a second may compute
_PADDING_TOLERANCE = 1e-4  # relative to the largest value: other shapes round differently

_PYTHON_ERRORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a user's model that computes batches of one size only."""

_Pair: TypeAlias = tuple[Any, Any]
"""A tensor of the trace for B examples, and the same of the trace for 2 * B."""


class LossSums(NamedTuple):
    """The sums of a training step over a batch: float32 scalars by term."""

    denominators: dict[str, Any]
    losses: dict[str, Any]
    side_losses: dict[str, Any]  # of layers

    def by_name(self) -> dict[str, Any]:
        """Returns all sums by the names that error messages give them."""
        named = {f"the denominator {name!r}": v for name, v in self.denominators.items()}
        losses = {**self.losses, **self.side_losses}
        return named | {f"the loss {name!r}": value for name, value in losses.items()}


def loss_sums(
    task: Task, weights: Any, state: Any, batch: Batch, call: Mapping[str, Any]
) -> LossSums:
    """Returns the losses and denominators of a batch, {name: [B, ...]}.

    `weights` and `state` are {path: float32 [*stacked axes, ...]}, with stacked layers as one
    tensor; `call` has further fields of the call context.
    Raises ParamError if the task's results break its contract, or if it hides state.
    """
    fields = {"state": state, "rows": batch["rows"], **call}
    with refuse_hidden_state():
        denominators = task.loss_denominators(CheckedBatch(batch))
        check_denominators(task, denominators)
        losses, sides = context.apply(
            task, weights, CheckedBatch(batch), method="loss", call=fields
        )
    check_losses(task, losses)
    return LossSums(denominators, losses, sides.losses)


def metric_sums(
    task: Task, weights: Any, state: Any, batch: Batch, place: Placement = ONE_DEVICE
) -> dict[str, Any]:
    """Returns the entries of a batch's metric states, float64, by their names in messages.

    The batch is {name: [B, ...]}; a mean has the entries `sum` and `weight`, scalars.
    """
    return _metrics_by_part(evaluate_batch(task, weights, state, batch, place))


def _metrics_by_part(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{part!r} of the metric {name!r}": value
        for name, metric in states.items()
        for part, value in metric.items()
    }


# ---- sums ----------------------------------------------------------------------------------------


def check_sums(learner: Learner, specs: Specs, place: Placement) -> None:
    """Raises ParamError if a loss, a denominator or a metric's state is not a sum over examples.

    Two kinds are not checked: values that depend on the batch inside a loop over layers, and models
    that compute batches of one size only. `specs` are name -> (shape, dtype) of a batch.
    """
    if all(is_lingos(type(layer)) for layer in learner.task.tree()):
        return
    once = _trace(learner, specs, place)
    try:
        twice = _trace(learner, _double(specs), place)
    except (*_PYTHON_ERRORS, LingoError, tf.errors.OpError):  # the task computes one batch size
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
    except tf.errors.OpError:  # an operation refuses ones, waits for other devices, or needs a GPU
        return
    for name, one, two in zip(names, *values, strict=True):
        _check_sum(learner.task, name, one, two)


def _double(specs: Specs) -> Specs:
    return {name: ((2 * size, *rest), dtype) for name, ((size, *rest), dtype) in specs.items()}


def _trace(learner: Learner, specs: Specs, place: Placement) -> dict[str, tf.Tensor]:
    """Returns a task's sums over a batch: name in messages -> tensor of a graph."""
    names: list[str] = []

    def sums(state: TrainState, batch: Batch) -> list[Any]:
        key = random.fold(random.root_key(learner.seed), state.step)
        call = {"training": True, "key": key, **place.call_fields()}
        given = (learner.task, state.weights, state.state, batch)
        named = loss_sums(*given, call).by_name() | metric_sums(*given, place)
        names.extend(named)
        return list(named.values())

    return dict(zip(names, graph_of(sums, learner, specs).outputs, strict=True))


def _boundary(end: _Pair) -> list[_Pair]:
    """Returns the last tensors before the result `end` whose sizes depend on the batch, in pairs.

    Placeholders on the way are included. Empty if the two traces differ in more than sizes.
    """
    boundary: list[_Pair] = []
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
            boundary.append((one, two))
        else:
            following.extend(zip(one.op.inputs, two.op.inputs, strict=True))
    return boundary


def _differ(one: tf.TensorShape, two: tf.TensorShape) -> bool:
    return one.is_fully_defined() and two.is_fully_defined() and one != two


def _is_small(pairs: list[_Pair]) -> bool:
    """Returns whether tensors can be replaced by ones that take little memory."""
    tensors = [tensor for pair in pairs for tensor in pair]
    if not all(t.shape.is_fully_defined() and (t.dtype.is_bool or _is_number(t)) for t in tensors):
        return False
    return sum(math.prod(tensor.shape) for tensor in tensors) <= _MAX_SIZE


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer


def _compute(ends: list[Any], ones: list[Any]) -> list[np.ndarray]:
    """Returns the values of a graph's tensors `ends`, with the tensors `ones` replaced by ones."""
    if not ends:
        return []
    definition = ends[0].graph.as_graph_def()
    for node in definition.node:  # without prints and assertions, which need the batch
        del node.input[sum(not name.startswith("^") for name in node.input) :]
    fed = {t.name: np.ones(t.shape, t.dtype.as_numpy_dtype) for t in ones}
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph, config=config) as run:
        tf.import_graph_def(definition, name="")
        return run.run([end.name for end in ends], fed)


def _check_sum(task: Task, name: str, one: np.ndarray, two: np.ndarray) -> None:
    """Raises ParamError if `two`, a sum over twice as many examples, is not twice `one`."""
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
        f"{where}: {type(task).__name__}: {name} is not a sum over examples: over twice as many,"
        f" it is {change}.\n"
        "Return tf.reduce_sum(weights * values), not a mean: lingo divides a loss by its"
        " `loss_denominators`, and the 'sum' of a metric by its 'weight', over the whole batch."
    )


# ---- padding -------------------------------------------------------------------------------------


def check_padding(learner: Learner, data: Input) -> None:
    """Raises ParamError if examples of weight 0 change a sum over the first examples of an input.

    Models that would take longer than about a second are left out.
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
    except (*_PYTHON_ERRORS, LingoError, tf.errors.OpError):  # the task computes one batch size
        return
    if problem:
        raise ParamError(problem)


def num_examples(task: Task) -> int:
    """Returns how many examples to compute: whole groups, so that padding gets other groups."""
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
    """Returns a sentence about a sum that examples of weight 0 change; "" if they change none.

    A loss that is not finite is reported instead, since no step would change a weight.

    Layers' losses and metrics are left out, since a layer need not know which examples are padding.
    Layers with statistics over the batch count padding in training. So a task that has such layers
    is computed as in an evaluation, with moving statistics and without gradients.

    Args:
        task: the model and its losses.
        weights: program path -> float32 [*stacked axes, ...].
        state: program path -> float32 [*stacked axes, ...], moving statistics.
        batch: {name: [B, ...]} arrays of some examples, with `rows` and `weights`.
        frozen: paths of weights that no step changes.
    """
    weights = {where: tf.convert_to_tensor(value) for where, value in weights.items()}
    counted = any(layer.batch_requirements().examples_counted is not None for layer in task.tree())

    def sums(batch: Batch) -> dict[str, Any]:
        if counted:
            named = _own_losses(loss_sums(task, weights, state, batch, {}))
        else:
            named = _trained_sums(task, weights, state, batch, frozen)
        call = {"state": state, "rows": batch["rows"]}
        states, _ = context.apply(task, weights, batch, method="evaluation_metrics", call=call)
        return named | _metrics_by_part(states)

    compute = tf.function(sums, autograph=False, reduce_retracing=False)
    alone, padded = (
        {name: np.asarray(value, np.float64) for name, value in compute(tensors).items()}
        for tensors in (_to_tensors(batch), _to_tensors(_pad(batch)))
    )
    for name, value in alone.items():
        if name.startswith("the loss") and not np.isfinite(value):
            return _describe_not_finite(task, name, float(value), batch)
        if _is_changed(value, padded[name]):
            return _describe(task, name, value, padded[name], len(batch["rows"]))
    return ""


def _is_cheap(task: Task, data: Input, num: int) -> bool:
    """Returns whether the check of `num` examples takes less than about a second."""
    specs = data.specs().values()
    elements = num * max(math.prod(shape[1:]) for shape, _ in specs)
    weights = sum(spec.size for spec in task.weights().values())
    return len([*task.tree()]) <= _MAX_LAYERS and elements * weights <= _MAX_PRODUCTS


def _pad(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch's examples, then a copy of them, then zeros; copy and zeros have weight 0."""
    padded = {name: np.concatenate([a, a, np.zeros_like(a)]) for name, a in batch.items()}
    padded["weights"][len(batch["weights"]) :] = 0.0
    return padded | {"rows": np.arange(len(padded["rows"]), dtype=padded["rows"].dtype)}


def _to_tensors(batch: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in batch.items()}


def _own_losses(sums: LossSums) -> dict[str, Any]:
    """Returns the sums by name, without the layers' losses."""
    return sums._replace(side_losses={}).by_name()


def _trained_sums(
    task: Task, weights: Any, state: Any, batch: Batch, frozen: set[str]
) -> dict[str, Any]:
    """Returns the losses, denominators and gradients of a training step, by name in messages."""
    call = {"training": True, "key": random.root_key(0), "unused_weights": set[str]()}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        sums = loss_sums(task, weights, state, batch, call)
        coefficients = task.coefficients()
        total = tf.add_n([coefficients.get(k, 1.0) * v for k, v in sums.losses.items()])
    gradients = tape.gradient(total, dict(weights))
    return _own_losses(sums) | {
        f"the gradient of {name!r}": tf.convert_to_tensor(value)
        for name, value in gradients.items()
        if value is not None and name not in frozen
    }


def _is_changed(alone: np.ndarray, padded: np.ndarray) -> bool:
    if alone.shape != padded.shape:  # it has one entry per example, so it is not a sum
        return False
    if not np.isfinite(alone).all():
        return False
    if not np.isfinite(padded).all():
        return True
    scale = max(np.abs(alone).max(initial=0.0), np.abs(padded).max(initial=0.0))
    return bool(np.abs(padded - alone).max(initial=0.0) > _PADDING_TOLERANCE * scale)


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
