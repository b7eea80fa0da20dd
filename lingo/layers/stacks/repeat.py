"""A stack of identical layers as a scan: one copy of the computation for any number of layers.

weights: path -> tensor [n, ...], which has a weight of n layers
for i in range(n):                      # one tf.while_loop
    x, sides[i] = body(x, weights[i])   # calls the layers, in a derived call context
sides (side outputs): losses and metrics are summed; batch statistics and caches stay stacked

If the field `layer` is a list of layers, they are the *pattern* that repeats, and calling each of
them once is a *pattern step*. The loop is then over pattern steps.

Axes: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lingo.config.lazy import tf
from lingo.config.params import inherited_values
from lingo.layers import context, path
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.stacks.stack import Stack
from lingo.ops.scan import scan


class Repeat(Stack):
    """Layers one after the other by a scan over stacked weights (as in Lingvo's `RepeatLayer`).

    Tracing and compiling take only as long as for a single copy of the layers in `layer`.
    """

    positionwise = True  # layers inside have their own

    def setup(self) -> None:
        size = len(self.pattern)
        self.num_steps = self.p.num_layers // size
        self.body = []
        for start, layer in enumerate(self.pattern):
            layer = layer.build(**inherited_values())
            self.copies("layers", layer, self.num_steps, start=start, step=size)
            self.body.append(layer)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        def pattern_step(x: tf.Tensor) -> tf.Tensor:
            for layer in self.body:
                x = layer(x, inputs=inputs)
            return x

        return scan_layers(pattern_step, tf.cast(x, self.p.dtype), self.body, self.num_steps)

    def step(self, x: tf.Tensor, index: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        def pattern_step(x: tf.Tensor) -> tf.Tensor:
            for layer in self.body:
                x = layer.step(x, index, inputs=inputs)
            return x

        return scan_layers(pattern_step, tf.cast(x, self.p.dtype), self.body, self.num_steps)

    def flops(self, shape: Sequence[int], *, memory_length: int | None = None) -> int:
        shape = tuple(shape)  # a new tensor: a layer does not read the stack's own input
        once = sum(layer.flops(shape, memory_length=memory_length) for layer in self.body)
        return self.num_steps * once


def layer_index(layer: Layer, copy: tf.Tensor | int) -> Any:
    """Returns the index that copy number `copy` of a layer has in the layer's path.

    With the path `layers/[1:12:2]`, for example, copy 2 has the index 5. `copy` is an int or an
    int32 tensor of any shape. Raises ValueError if the layer was not declared by `copies`.
    """
    indices = path.index_range(layer.path.rpartition("/")[2])
    if indices is None:
        raise ValueError(f"{layer.path} is not a layer of `copies`")
    return indices.start + indices.step * copy


def scan_layers(
    pattern_step: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, layers: Sequence[Layer], num: int
) -> tf.Tensor:
    """Calls `pattern_step` on x `num` times in a scan, each time with the next weights of `layers`.

    `pattern_step` calls each of `layers` once, on a tensor [B, ...] of any float type, and keeps
    the tensor's shape. Between steps, x keeps its type.
    """
    call = context.current()

    def body(i: tf.Tensor, x: tf.Tensor, values: Any) -> tuple[tf.Tensor, Any]:
        indices = {layer.path: layer_index(layer, i) for layer in layers}
        inner = call.derive(indices={**call.indices, **indices}, **values)
        with context.enter_call(inner):
            # lossless if the layer computes in a narrower type
            y = tf.cast(pattern_step(x), x.dtype)
        sides = (inner.sides.additive_fields(), inner.sides.per_layer_fields())
        # a loop's gradient is zero, not None, for weights that its body does not use
        call.unused_weights.update(find_disconnected((y, sides), values["weights"]))
        return y, sides

    x, (additive, per_layer) = scan(body, x, call.of(layers), num)
    call.sides.add(tf.nest.map_structure(lambda v: tf.reduce_sum(v, axis=0), additive))
    call.sides.add(per_layer)
    return x


def find_disconnected(outputs: Any, inputs: Mapping[str, tf.Tensor]) -> set[str]:
    """Returns the keys of inputs on which no output depends, except through `tf.stop_gradient`.

    `inputs` maps keys to tensors, and `outputs` is a structure of tensors, all in the graph that is
    being traced, of any shape and type. All results of a loop or a function count as dependent on
    all its inputs.

    >>> @tf.function(input_signature=2 * [tf.TensorSpec([], tf.float32)])
    ... def function(x, y):
    ...     print(find_disconnected(2 * x, {"x": x, "y": y}))
    >>> _ = function.get_concrete_function()
    {'y'}
    """
    reached = _reach(tensor for tensor in tf.nest.flatten(outputs) if tf.is_tensor(tensor))
    return {key for key, tensor in inputs.items() if tensor.name not in reached}


def _reach(tensors: Iterable[tf.Tensor]) -> set[str]:
    """Returns the names of `tensors` and of all tensors that they are computed from."""
    reached: set[str] = set()
    following = list(tensors)
    while following:
        tensor = following.pop()
        if tensor.name in reached:
            continue
        reached.add(tensor.name)
        op = tensor.op
        # IdentityN ties a custom gradient's results to its arguments: follow only the result
        if op.type == "IdentityN":
            following.append(op.inputs[tensor.value_index])
        elif op.type != "StopGradient":
            following.extend(op.inputs)
    return reached
