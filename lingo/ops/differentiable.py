"""Which tensors of a graph the gradient of others reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lingo.config.lazy import tf


def find_disconnected(outputs: Any, inputs: Mapping[str, tf.Tensor]) -> set[str]:
    """Returns the keys of those inputs on which no output depends, or only by `tf.stop_gradient`.

    Both are tensors of the graph that is being traced, of any shape and type; `outputs` is a
    structure of them. A loop or a function counts as if all its results depended on all its inputs.

    >>> @tf.function(input_signature=2 * [tf.TensorSpec([], tf.float32)])
    ... def function(x, y):
    ...     print(find_disconnected(2 * x, {"x": x, "y": y}))
    >>> _ = function.get_concrete_function()
    {'y'}
    """
    reached = _reach(tensor for tensor in tf.nest.flatten(outputs) if tf.is_tensor(tensor))
    return {key for key, tensor in inputs.items() if tensor.name not in reached}


def _reach(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Returns the names of all tensors from which some tensors are computed, these included."""
    reached: set[str] = set()
    following = list(tensors)
    while following:
        tensor = following.pop()
        if tensor.name in reached:
            continue
        reached.add(tensor.name)
        op = tensor.op
        if op.type == "IdentityN":  # it ties the results of a custom gradient to its arguments
            following.append(op.inputs[tensor.value_index])
        elif op.type != "StopGradient":
            following.extend(op.inputs)
    return reached
