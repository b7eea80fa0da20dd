"""Records the calls that a task makes of its layers: examples of what each layer computes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.inspection.conformance.layer_call import LayerCall, LayerValues, values_of
from lingo.inspection.conformance.layer_claims import Example
from lingo.layers import context
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.stacks.micro_batches import examples_together
from lingo.layers.stacks.pipeline import Pipeline
from lingo.layers.stacks.pipelined_chain import PipelinedChain
from lingo.learner.task import Task


class Recorder:
    """The first call of each layer, as an observer of a call context gets them."""

    def __init__(self) -> None:
        self.calls: dict[Layer, LayerCall] = {}

    def __call__(self, layer: Layer, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        if layer not in self.calls:
            rows = context.current().rows
            self.calls[layer] = LayerCall(args, _merge_inputs(layer, keywords), rows)

    def input_shapes(self) -> dict[Layer, tuple[int | None, ...]]:
        """Returns the shape of the first tensor with positions that each layer got."""
        shapes = {}
        for layer, call in self.calls.items():
            tensors = [v for v in tf.nest.flatten(call.args) if tf.is_tensor(v)]
            ranks = [t for t in tensors if t.shape.rank is not None and t.shape.rank >= 2]
            if ranks:
                shapes[layer] = tuple(ranks[0].shape)
        return shapes

    def example(self, layer: Layer, task: Task, values: LayerValues) -> Example:
        """Returns the call of a layer of a task, whose weights and states are given."""
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
    """Returns the number that a layer's batch must be a multiple of, for an input of a shape."""
    pipelines = [x for x in layer.tree() if isinstance(x, (Pipeline, PipelinedChain))]
    counts = (pipeline.p.num_micro_batches for pipeline in pipelines)
    return math.lcm(*counts) * examples_together([layer], shape)


def _merge_inputs(layer: Layer, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords with one `inputs` in place of those that `accept_inputs` puts into it."""
    own = inspect.signature(type(layer).__call__).parameters
    merged = {name: v for name, v in keywords.items() if name in CallInputs._fields}
    merged = {name: value for name, value in merged.items() if name not in own}
    rest = {name: value for name, value in keywords.items() if name not in merged}
    if merged:
        rest["inputs"] = rest.get("inputs", NO_INPUTS)._replace(**merged)
    return rest


def _with_values(call: LayerCall) -> LayerCall:
    """Returns a call with values for tensors of a graph, which only have shapes."""
    args, inputs, rows = tf.nest.map_structure(_value, (call.args, dict(call.inputs), call.rows))
    if isinstance(passed := inputs.get("inputs"), CallInputs):
        inputs["inputs"] = _one_document(passed, call.inputs["inputs"])
    if tf.is_symbolic_tensor(call.rows):
        rows = np.arange(len(rows), dtype=np.int32)
    return LayerCall(args, inputs, rows, call.method)


def _value(tensor: Any) -> Any:
    """Returns a tensor's value; of a tensor of a graph one that is drawn: ones unless floats."""
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
    """Returns inputs with the positions of one document if they are not known."""
    if not tf.is_symbolic_tensor(recorded.position_ids):
        return inputs
    batch, length = inputs.position_ids.shape
    return inputs._replace(
        position_ids=np.tile(np.arange(length, dtype=np.int32), (batch, 1)), prefix=None
    )


def _fields_of_parents(layer: Layer, task: Task) -> dict[str, Any]:
    """Returns the numbers and texts among the fields of all layers around one; the nearest wins."""
    fields: dict[str, Any] = {}
    for parent in task.tree():  # from the root down
        if parent is not layer and any(inner is layer for inner in parent.tree()):
            for name in type(parent)._fields:
                if isinstance(value := getattr(parent.p, name), (int, float, str)):
                    fields[name] = value
    return fields
