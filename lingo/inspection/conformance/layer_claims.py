"""Claims that must hold for every layer, checked for one layer of a task with the task's inputs.

Axes: B batch, T positions.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.config.roots.user_line import is_lingos
from lingo.inspection.conformance.claim import Broken, NotChecked, largest_of, require_same
from lingo.inspection.conformance.layer_call import (
    Engine,
    LayerCall,
    LayerResult,
    LayerValues,
    OneByOne,
    SideBySide,
    as_tensors,
    compute,
    compute_by_steps,
    perturbed_values,
    values_of,
)
from lingo.layers import context
from lingo.layers.hidden_state import refuse_hidden_state
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.token_choice import TokenChoiceRouter
from lingo.layers.stacks.micro_batches import examples_together
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.learner.task import Task
from lingo.ops import random

ROUNDING = 1e-3  # allowed difference of float32 results, relative to their largest element
GRADIENT_ROUNDING = 1e-2  # allowed difference of a gradient, relative to its largest element
# Gradients below this count as rounding; relative to the largest element of all gradients.
FLOOR = 1e-2

_NOT_VECTORIZED = ("expected to be loop invariant", "No pfor vectorization defined")
"""Parts of error messages of `tf.vectorized_map`, for operations that it cannot vectorize."""

Check = Callable[[], None]


class Example(NamedTuple):
    """A layer of a task, and the first call of this layer in a training step.

    Attributes:
        layer: the layer, in the tree of its task.
        values: the layer's weights and states, by their paths in this tree.
        call: the call's arguments for one batch; a `CallInputs` among them is named `inputs`.
        examples_together: number of neighbouring examples that the layer declares to compute
            together.
        mixes_in_training: whether the layer declares that in training each result depends on all
            examples.
        inherited_fields: field -> value that the layer may inherit from the layers around it.
    """

    layer: Layer
    values: LayerValues
    call: LayerCall
    examples_together: int
    mixes_in_training: bool
    inherited_fields: Mapping[str, Any]


def layer_claims(example: Example) -> Iterator[tuple[str, Check]]:
    """Yields the text of each claim about a layer, and its check; hidden state comes first."""
    checks = {
        "no variable of its own, and no random numbers but from random_key": _check_hidden_state,
        "eager = graph = XLA": _check_engines,
        "no row depends on another row of the batch": _check_rows,
        "position by position = whole call": _check_steps,
        "in Stack, Remat and Repeat the same": _check_stacks,
        "vmapped copies = one by one": _check_copies,
    }
    for text, check in checks.items():
        yield text, functools.partial(check, example)


def check_results(plain: LayerResult, other: LayerResult, *, what: str) -> None:
    """Raises Broken unless a layer's results and gradients are the same up to rounding."""
    ours, theirs = (
        {f"result {i}": value for i, value in enumerate(result.outputs)}
        for result in (plain, other)
    )
    require_same(ours, theirs, what=what, tolerance=ROUNDING)
    check_gradients(plain.gradients, other.gradients, what=what)


def check_gradients(
    plain: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], *, what: str
) -> None:
    """Raises Broken unless gradients of weights, by name, are equal up to rounding.

    A missing gradient counts as zero, since a loop over layers gives zeros to unused weights.
    """
    zeros = {name: np.zeros_like(value) for name, value in {**plain, **other}.items()}
    ours, theirs = (
        {f"the gradient of {name}": value for name, value in {**zeros, **given}.items()}
        for given in (plain, other)
    )
    floor = FLOOR * largest_of([*plain.values()])
    require_same(ours, theirs, what=what, tolerance=GRADIENT_ROUNDING, floor=floor)


# ---- one call ------------------------------------------------------------------------------------


def _check_hidden_state(example: Example) -> None:
    call, weights = example.call, example.values.weights
    args, inputs = as_tensors((call.args, dict(call.inputs)))
    fields = _fields(example) | {"training": True, "key": random.root_key(1)}

    def trace() -> None:
        with refuse_hidden_state():
            context.apply(example.layer, weights, *args, call=fields, **inputs)

    tf.function(trace, autograph=False).get_concrete_function()


def _fields(example: Example) -> dict[str, Any]:
    """Returns the fields of the call context, for calling the layer outside of training."""
    values, rows = example.values, as_tensors(example.call.rows)
    return {"state": values.state, "indices": values.indices, "rows": rows}


def _check_engines(example: Example) -> None:
    eager, graph, xla = (_compute(example, engine=engine) for engine in ("eager", "graph", "xla"))
    check_results(eager, graph, what="as a graph, not eagerly")
    check_results(graph, xla, what="compiled by XLA")


def _check_rows(example: Example) -> None:
    num, together = len(np.asarray(example.call.rows)), example.examples_together
    if num <= together:
        raise NotChecked(f"it computes {together} neighbouring rows as one, by batch_requirements")
    if not any(_has_rows(v, num) for v in tf.nest.flatten(example.call.args)):
        raise NotChecked(f"no argument of the call has the {num} rows of the batch")
    for training in (False, True):
        if training and example.mixes_in_training:
            continue
        whole = _compute(example, training=training).outputs
        for rows in (slice(0, together), slice(together, num)):
            part = example._replace(call=_select_rows(example.call, rows, num))
            results = _compute(part, training=training).outputs
            when = "in training" if training else "in evaluation"
            what = f"{when}, rows {rows.start} to {rows.stop - 1} without the other rows"
            of_rows = [i for i, value in enumerate(whole) if _has_rows(value, num)]
            require_same(
                {f"result {i}": whole[i][rows] for i in of_rows},
                {f"result {i}": results[i] for i in of_rows},
                what=what,
                tolerance=ROUNDING,
            )


def _has_rows(value: Any, num: int) -> bool:
    """Returns whether a value is an array or tensor of shape [num, ...]."""
    return len(getattr(value, "shape", ())) > 0 and value.shape[0] == num


def _select_rows(call: LayerCall, rows: slice, num: int) -> LayerCall:
    args, inputs = tf.nest.map_structure(
        lambda v: v[rows] if _has_rows(v, num) else v, (call.args, dict(call.inputs))
    )
    return call._replace(args=args, inputs=inputs, rows=call.rows[rows])


def _compute(example: Example, *, engine: Engine = "eager", training: bool = True) -> LayerResult:
    return compute(example.layer, example.values, example.call, engine=engine, training=training)


# ---- positions -----------------------------------------------------------------------------------


def _check_steps(example: Example) -> None:
    layer = example.layer
    if type(layer).step is Layer.step and not all(inner.positionwise for inner in layer.tree()):
        raise NotChecked("it has no `step`, so decoding computes the whole call for each position")
    x, documents = _positions(_stack_call(example))
    example = _without_limits(example)
    whole = _whole(example, x, documents)
    if whole.shape[:2] != x.shape[:2]:
        raise NotChecked(f"its result, {list(whole.shape)}, lacks the positions of its input")
    if _sees_later_positions(example, x, documents, whole):
        if is_lingos(_class_that_steps(layer)):
            raise NotChecked("a result depends on later positions, so it is not decoded")
        raise Broken("a result depends on later positions: no `step` can compute it")
    for sizes in _chunks(x.shape[1]):
        steps = compute_by_steps(example.layer, example.values, x, sizes, **documents)
        require_same(
            {"result": whole},
            {"result": steps},
            what=f"by `step` on chunks of {', '.join(map(str, sizes))} positions",
            tolerance=ROUNDING,
        )


def _stack_call(example: Example) -> LayerCall:
    """Returns the recorded call of a layer; raises NotChecked if no stack could make the call."""
    call = example.call
    if len(call.args) != 1 or {*call.inputs} - {"inputs"} or not hasattr(call.args[0], "shape"):
        raise NotChecked("it is not called with one tensor and `inputs`, as a stack calls layers")
    return call


def _positions(call: LayerCall) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns a call's x, [B, T, ...], and further inputs by name, int32 [B, T].

    The further inputs say that each row is a single document.
    """
    x, passed = np.asarray(call.args[0]), call.inputs.get("inputs", NO_INPUTS)
    if x.ndim < 2 or x.shape[1] < 2:
        raise NotChecked(f"its input, {list(x.shape)}, has no positions")
    if passed.memory is not None or passed.position_table is not None:
        raise NotChecked("it is called with the memory, or the position table, of other layers")
    batch, length = x.shape[:2]
    documents = {
        "segments": np.ones([batch, length], np.int32),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (batch, 1)),
    }
    if passed.token_ids is not None:
        documents["token_ids"] = np.asarray(passed.token_ids)
    return x, documents


def _whole(example: Example, x: Any, documents: Mapping[str, np.ndarray]) -> np.ndarray:
    inputs = CallInputs(**as_tensors(documents))
    weights, fields = example.values.weights, _fields(example)
    y, _ = context.apply(example.layer, weights, tf.constant(x), inputs=inputs, call=fields)
    return np.asarray(y)


def _sees_later_positions(
    example: Example, x: np.ndarray, documents: Mapping[str, np.ndarray], whole: np.ndarray
) -> bool:
    half = x.shape[1] // 2
    # Later positions become copies of x[:, 0], since attention may ignore a mere reordering.
    later = [0] * (x.shape[1] - half)
    changed = _whole(example, x[:, [*range(half), *later]], documents)
    try:
        require_same({"": whole[:, :half]}, {"": changed[:, :half]}, what="", tolerance=ROUNDING)
    except Broken:
        return True
    return False


def _class_that_steps(layer: Layer) -> type:
    """Returns the class, of a layer or a base, that defines how it computes single positions."""
    names = {"step", "positionwise", "__call__"}
    return next(cls for cls in type(layer).__mro__ if names & vars(cls).keys())


def _chunks(length: int) -> list[list[int]]:
    """Returns lists of chunk sizes, each with the sum `length`; few, since each takes a call."""
    if length <= 4:
        return [[1] * length, [length - 1, 1]]
    half = length // 2
    return [[1, half - 1, 1, length - half - 1]]


def _without_limits(example: Example) -> Example:
    """Returns the example with experts whose capacity suffices for all tokens.

    Otherwise experts would drop other tokens from a part of a text than from the whole text.
    """
    mixtures = [layer for layer in example.layer.tree() if isinstance(layer, MoE)]
    if not mixtures:
        return example
    enough = max(float(mixture.p.num_experts) for mixture in mixtures)
    params = example.layer.p.copy()
    params.all(MoE).set(capacity_factor=enough, eval_capacity_factor=None)
    params.all(TokenChoiceRouter).set(priority="position")
    layer = _build_alone(params, example.inherited_fields)
    return example._replace(layer=layer, values=perturbed_values(layer))


# ---- inside other layers -------------------------------------------------------------------------


def _check_stacks(example: Example) -> None:
    params = _stack_params(example)
    plain = _compute_in(Stack.params(layer=params, num_layers=2), example, engine="eager")
    remat = Stack.params(layer=Remat.params(layer=params), num_layers=2)
    check_results(plain, _compute_in(remat, example, engine="eager"), what="in Remat")
    scan = Repeat.params(layer=params, num_layers=2)
    check_results(plain, _compute_in(scan, example, engine="graph"), what="in Repeat")


def _stack_params(example: Example) -> Params:
    """Returns the params of a layer; raises NotChecked if no stack can hold the layer."""
    call, weights = _stack_call(example), example.values.weights
    x, inputs = as_tensors(call.args[0]), as_tensors(dict(call.inputs))
    y, _ = context.apply(example.layer, weights, x, call=_fields(example), **inputs)
    if not tf.is_tensor(y) or (y.shape, y.dtype) != (x.shape, x.dtype):
        raise NotChecked(
            "no stack can hold it: its result has another shape or type than its input"
        )
    return example.layer.p


def _check_copies(example: Example) -> None:
    params, call = _stack_params(example), example.call
    args = tuple(np.stack([np.asarray(arg), np.asarray(arg)[::-1]]) for arg in call.args)
    example = example._replace(call=call._replace(args=args))
    alone = _compute_in(OneByOne.params(layer=params), example, engine="eager")
    try:
        lifted = _compute_in(SideBySide.params(layer=params), example, engine="graph")
    except ValueError as error:
        if any(text in str(error) for text in _NOT_VECTORIZED):
            raise NotChecked(f"TensorFlow cannot vectorize it: {error}") from None
        raise
    check_results(alone, lifted, what="vmapped")


def _compute_in(params: Params, example: Example, *, engine: Engine) -> LayerResult:
    layer = _build_alone(params, example.inherited_fields)
    return compute(layer, perturbed_values(layer), example.call, engine=engine)


def _build_alone(params: Params, inherited: Mapping[str, Any]) -> Any:
    """Builds a layer without the layers around it; if that fails, with the fields it inherits."""
    try:
        return params.copy().build()
    except ParamError:
        pass
    try:
        return params.copy().build(**inherited)
    except ParamError as error:
        raise NotChecked(f"it cannot be built without its parents: {error}") from None


# ---- calls that a task makes ---------------------------------------------------------------------


class Recorder:
    """An observer of a call context that records the first call of each layer."""

    def __init__(self) -> None:
        self.calls: dict[Layer, LayerCall] = {}

    def __call__(self, layer: Layer, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        if layer not in self.calls:
            rows = context.current().rows
            self.calls[layer] = LayerCall(args, _merge_inputs(layer, keywords), rows)

    def input_shapes(self) -> dict[Layer, tuple[int | None, ...]]:
        """Returns the shape of each layer's first argument that has two or more dims."""
        shapes = {}
        for layer, call in self.calls.items():
            tensors = [v for v in tf.nest.flatten(call.args) if tf.is_tensor(v)]
            ranks = [t for t in tensors if t.shape.rank is not None and t.shape.rank >= 2]
            if ranks:
                shapes[layer] = tuple(ranks[0].shape)
        return shapes

    def example(self, layer: Layer, task: Task, values: LayerValues) -> Example:
        """Returns the recorded call of a layer; `values` are the task's weights and states."""
        shape = self.input_shapes().get(layer, (None, None))
        requirements = [inner.batch_requirements() for inner in layer.tree()]
        return Example(
            layer=layer,
            values=values_of(layer, values),
            call=_with_values(self.calls[layer]),
            examples_together=rows_together(layer, shape),
            mixes_in_training=any(needs.examples_counted == 0 for needs in requirements),
            inherited_fields=_fields_of_parents(layer, task),
        )


def rows_together(layer: Layer, shape: Sequence[int | None]) -> int:
    """Returns the number that must divide a layer's batch size, for an input shape."""
    pipelines = [x for x in layer.tree() if isinstance(x, (Pipeline, PipelinedChain))]
    counts = (pipeline.p.num_micro_batches for pipeline in pipelines)
    return math.lcm(*counts) * examples_together([layer], shape)


def _merge_inputs(layer: Layer, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments with one `inputs` for all that `accept_inputs` merges into it."""
    own = inspect.signature(type(layer).__call__).parameters
    merged = {name: v for name, v in keywords.items() if name in CallInputs._fields}
    merged = {name: value for name, value in merged.items() if name not in own}
    rest = {name: value for name, value in keywords.items() if name not in merged}
    if merged:
        rest["inputs"] = rest.get("inputs", NO_INPUTS)._replace(**merged)
    return rest


def _with_values(call: LayerCall) -> LayerCall:
    """Returns a call with arrays in place of a graph's tensors, which have shapes but no values."""
    args, inputs, rows = tf.nest.map_structure(_value, (call.args, dict(call.inputs), call.rows))
    if isinstance(passed := inputs.get("inputs"), CallInputs):
        inputs["inputs"] = _one_document(passed, call.inputs["inputs"])
    if tf.is_symbolic_tensor(call.rows):
        rows = np.arange(len(rows), dtype=np.int32)
    return LayerCall(args, inputs, rows, call.method)


def _value(tensor: Any) -> Any:
    """Returns a tensor's value; for a symbolic tensor random floats, or ones if it is no float."""
    if not tf.is_tensor(tensor):
        return tensor
    if not tf.is_symbolic_tensor(tensor):
        return tensor.numpy()
    shape = [size or 1 for size in tensor.shape]
    if tensor.dtype.is_floating:
        values = np.random.default_rng(0).normal(size=shape)
        return values.astype(tensor.dtype.as_numpy_dtype)
    return np.ones(shape, tensor.dtype.as_numpy_dtype)


def _one_document(inputs: CallInputs, recorded: CallInputs) -> CallInputs:
    """Returns inputs in which each row is one document, if recorded positions have no values."""
    if not tf.is_symbolic_tensor(recorded.position_ids):
        return inputs
    batch, length = inputs.position_ids.shape
    return inputs._replace(
        position_ids=np.tile(np.arange(length, dtype=np.int32), (batch, 1)), prefix=None
    )


def _fields_of_parents(layer: Layer, task: Task) -> dict[str, Any]:
    """Returns the numbers and strings in the fields of the layers around a layer: name -> value.

    If several of these layers have a field, the nearest layer's value is taken.
    """
    fields: dict[str, Any] = {}
    for parent in task.tree():  # from the root down
        if parent is not layer and any(inner is layer for inner in parent.tree()):
            for name in type(parent)._fields:
                if isinstance(value := getattr(parent.p, name), (int, float, str)):
                    fields[name] = value
    return fields
