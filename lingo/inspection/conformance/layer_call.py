"""A call of a single layer, computed in every way that a program may compute it.

Axes: B batch, T positions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import inherited_values
from lingo.layers import context, path
from lingo.layers.inputs import NO_INPUTS, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.stacks.lift import vmap_layer
from lingo.layers.tree import ParamSpec
from lingo.learner.state import initial_value
from lingo.ops import random

Engine = Literal["eager", "graph", "xla"]


class LayerCall(NamedTuple):
    """The arguments of a layer's call: tensors, arrays, or nested structures of these.

    Attributes:
        args: arguments by position.
        inputs: arguments by name.
        rows: int32 [B], the index of each example in the step's batch.
        method: the name of the method that is called.
    """

    args: tuple[Any, ...]
    inputs: Mapping[str, Any]
    rows: Any
    method: str = "__call__"


class LayerValues(NamedTuple):
    """Weights and states of a layer: path -> float32 tensor, with stacked layers as one tensor.

    For a layer inside a stack they are the values of one copy of the layer.
    """

    weights: dict[str, Any]
    state: dict[str, Any]
    indices: dict[str, int]  # path of a stacked layer -> index of the copy; {}: not in a stack


class LayerResult(NamedTuple):
    """The results of a training call of a layer.

    Attributes:
        outputs: the results, and then the side losses, in the order of `tf.nest.flatten`.
        gradients: path -> gradient of a weight, with a separate path for each stacked layer. If the
            layer is a copy inside a stack, the paths name the stacked weights.
        without_gradient: paths of the weights that no result depends on.
    """

    outputs: list[np.ndarray]
    gradients: dict[str, np.ndarray]
    without_gradient: list[str]


def initial_values(layer: Layer) -> LayerValues:
    """Returns the weights and states with which a root layer begins training, for seed 0."""
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    state = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}
    return LayerValues(weights, state, {})


def perturbed_values(layer: Layer) -> LayerValues:
    """Returns the initial weights of a root layer plus noise, and its initial states.

    Without noise, initial weights of zeros or ones would hide many mistakes.
    """
    weights = {where: tf.constant(_perturb(spec)) for where, spec in layer.weights().items()}
    return initial_values(layer)._replace(weights=weights)


def _perturb(spec: ParamSpec) -> np.ndarray:
    """Returns a weight's initial value plus noise, float32 [*spec.program_shape].

    A single layer's values depend only on its path, not on how layers are stacked.
    """
    deviation = 0.5 / max(1, spec.fan_in) ** 0.5
    noise = [
        np.random.default_rng(zlib.crc32(name.encode())).normal(0.0, deviation, spec.shape)
        for name in path.names(spec.path)
    ]
    return initial_value(spec, 0) + np.reshape(noise, spec.program_shape).astype(np.float32)


def values_of(layer: Layer, root: LayerValues) -> LayerValues:
    """Returns the values of a layer inside a tree; `root` holds the values of the whole tree.

    If the layer is stacked, they are the values of its first copy.
    """
    shape = path.stack_shape(layer.path)
    prefix = layer.path and f"{layer.path}/"

    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        first = (0,) * len(shape)
        return {k: v[first] if shape else v for k, v in values.items() if k.startswith(prefix)}

    return LayerValues(own(root.weights), own(root.state), _first_indices(layer.path))


def _first_indices(where: str) -> dict[str, int]:
    """Returns the first index of each slice in a path: path up to the slice -> first index."""
    parts = where.split("/")
    return {
        "/".join(parts[:end]): copies.start
        for end, part in enumerate(parts, start=1)
        if (copies := path.index_range(part)) is not None
    }


# ---- computation ---------------------------------------------------------------------------------


def compute(
    layer: Layer,
    values: LayerValues,
    call: LayerCall,
    *,
    engine: Engine = "eager",
    training: bool = True,
) -> LayerResult:
    """Computes a call of a layer, and the gradient of the sum of sin(y) over all its results y."""
    given = as_tensors((values.weights, values.state, call.rows, call.args, dict(call.inputs)))
    key = random.root_key(1) if training else None
    fields = {"training": training, "key": key, "compiled": engine == "xla"}

    def step() -> Any:
        # Copies into the traced graph, as in a training step. The gradient of a loop with a
        # rematerialized layer cannot capture tensors from outside the graph.
        own, state, rows, args, inputs = tf.nest.map_structure(
            lambda v: tf.identity(v) if tf.is_tensor(v) else v, given
        )
        with tf.GradientTape() as tape:
            tape.watch(own)
            outputs, sides = context.apply(
                layer,
                own,
                *args,
                method=call.method,
                call=fields | {"state": state, "rows": rows, "indices": values.indices},
                **inputs,
            )
            flat = [v for v in tf.nest.flatten((outputs, sides.losses)) if tf.is_tensor(v)]
            sums = [tf.reduce_sum(tf.sin(v)) for v in flat if v.dtype.is_floating]
            loss = tf.add_n([tf.cast(v, tf.float32) for v in sums]) if sums else tf.zeros([])
        return flat, tape.gradient(loss, own)

    outputs, gradients = run(step, engine)
    reached = {k: tf.convert_to_tensor(v) for k, v in gradients.items() if v is not None}
    without = [where for where, value in gradients.items() if value is None]
    copies = values.indices  # if the layer is stacked, values belong to one of its copies
    named = {k: v.numpy() for k, v in reached.items()} if copies else by_name(reached)
    return LayerResult([v.numpy() for v in outputs], named, without)


def run(function: Callable[[], Any], engine: Engine) -> Any:
    """Calls a function eagerly, as a graph or compiled by XLA, and returns its tensors."""
    if engine == "eager":
        return function()
    compiled = tf.function(function, autograph=False, jit_compile=engine == "xla")
    return compiled.get_concrete_function()()


def compute_by_steps(
    layer: Layer, values: LayerValues, x: Any, sizes: Sequence[int], **inputs: Any
) -> np.ndarray:
    """Computes a layer chunk by chunk with its method `step`, as decoding does.

    Args:
        layer: the layer.
        values: the layer's weights and states.
        x: the input, [B, T, ...], of any dtype.
        sizes: number of positions in each chunk; their sum is T.
        **inputs: further inputs, [B, T, ...].

    Returns:
        The results of all steps, concatenated along positions, [B, T, ...].
    """
    batch, length = x.shape[:2]
    stacked = len(path.stack_shape(layer.path))
    empty = layer.empty_caches(batch_size=batch, length=length)
    caches = {where: value[(0,) * stacked] for where, value in empty.items()} if stacked else empty
    outputs, start = [], 0
    for size in sizes:
        call = {"caches": caches, "state": values.state, "decode_length": length}
        call["indices"] = values.indices
        now = {k: tf.constant(v[:, start : start + size]) for k, v in {"x": x, **inputs}.items()}
        y, sides = context.apply(
            layer, values.weights, now.pop("x"), start, method="step", call=call, **now
        )
        caches, start = {**caches, **sides.caches}, start + size
        outputs.append(y)
    return np.concatenate(outputs, axis=1)


def by_name(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Splits tensors that stack several layers' weights: returns path of a single weight -> array.

    `tensors` is path -> tensor, with stacked layers as one tensor.
    """
    arrays = {}
    for where, value in tensors.items():
        parts = value.numpy().reshape(-1, *value.shape[len(path.stack_shape(where)) :])
        arrays |= dict(zip(path.names(where), parts, strict=True))
    return arrays


def as_tensors(structure: Any) -> Any:
    """Returns a nested structure with TensorFlow constants in place of NumPy arrays."""
    return tf.nest.map_structure(
        lambda v: tf.constant(np.asarray(v)) if isinstance(v, (np.ndarray, np.generic)) else v,
        structure,
    )


# ---- copies --------------------------------------------------------------------------------------


class SideBySide(Layer):
    """Two copies of a layer, computed together by vectorization (vmap) over an axis."""

    layer: Layer  # the layer that is copied

    def setup(self) -> None:
        self.layer = self.copies(
            "layers", self.p.layer.build(**inherited_values()), 2, axis="stage"
        )

    def __call__(self, *args: tf.Tensor, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [2, ...] results of [2, ...] args, any types; both get the same `inputs`."""
        return vmap_layer(self.layer, 2, *args, axis="stage", common={"inputs": inputs})


class OneByOne(Layer):
    """Two copies of a layer, called one after the other: a reference for `SideBySide`."""

    layer: Layer  # the layer that is copied

    def setup(self) -> None:
        self.layers = [self.p.layer.build(**inherited_values()) for _ in range(2)]

    def __call__(self, *args: tf.Tensor, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [2, ...] results of [2, ...] args, any types; both get the same `inputs`."""
        results = [
            layer(*(arg[i] for arg in args), inputs=inputs) for i, layer in enumerate(self.layers)
        ]
        return tf.nest.map_structure(lambda *values: tf.stack(values), *results)
