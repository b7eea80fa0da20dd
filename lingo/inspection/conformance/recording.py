"""Records the calls that a task makes of its layers: examples of what each layer computes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.inspection.conformance.layer_call import LayerCall, LayerValues, values_of
from lingo.inspection.conformance.layer_claims import Example
from lingo.layers import context, path
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.stacks.micro_batches import examples_together
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

    def examples(self, task: Task, values: LayerValues) -> list[Example]:
        """Returns an example of each layer, in the order of their first calls."""
        shapes, parents = self.input_shapes(), _parents(task)
        return [
            Example(
                layer=layer,
                values=values_of(layer, values),
                call=_concrete(call),
                together=examples_together([layer], shapes.get(layer, (None, None))),
                mixes_in_training=any(
                    inner.batch_requirements().examples_counted == 0 for inner in layer.tree()
                ),
                inherited=_simple_fields(parents.get(layer, [])),
            )
            for layer, call in self.calls.items()
        ]


def _merge_inputs(layer: Layer, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords with one `inputs` in place of those that `accept_inputs` puts into it."""
    own = inspect.signature(type(layer).__call__).parameters
    merged = {name: v for name, v in keywords.items() if name in CallInputs._fields}
    merged = {name: value for name, value in merged.items() if name not in own}
    rest = {name: value for name, value in keywords.items() if name not in merged}
    if merged:
        rest["inputs"] = rest.get("inputs", NO_INPUTS)._replace(**merged)
    return rest


def _concrete(call: LayerCall) -> LayerCall:
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


def _parents(task: Task) -> dict[Layer, list[Layer]]:
    """Returns the layers around each layer, from the root down; wrappers share a path."""
    return {
        layer: [
            other
            for other in task.tree()
            if other is not layer and path.join(layer.path, "").startswith(other.path)
        ]
        for layer in task.tree()
    }


def _simple_fields(layers: list[Layer]) -> dict[str, Any]:
    """Returns the numbers and texts among the fields of layers, of the last one that has each."""
    fields: dict[str, Any] = {}
    for layer in layers:
        for name in type(layer)._fields:
            if isinstance(value := getattr(layer.p, name), (int, float, str)):
                fields[name] = value
    return fields
