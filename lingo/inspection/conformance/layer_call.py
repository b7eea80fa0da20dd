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
    """The arguments of a call: tensors, arrays or structures of them.

    Attributes:
        args: arguments by position.
        inputs: arguments by name.
        rows: int32 [B], the index of each example in the step's batch.
        method: the method that computes.
    """

    args: tuple[Any, ...]
    inputs: Mapping[str, Any]
    rows: Any
    method: str = "__call__"


class LayerValues(NamedTuple):
    """Weights and states of a layer, float32 by program path, and the indices of its copies."""

    weights: dict[str, Any]
    state: dict[str, Any]
    indices: dict[str, int]


class LayerResult(NamedTuple):
    """The results of a training call of a layer.

    Attributes:
        outputs: the results, and then the side losses, in the order of `tf.nest.flatten`.
        gradients: gradients by the names of single layers' weights; by program path for one copy.
        without_gradient: the program paths of weights that no result depends on.
    """

    outputs: list[np.ndarray]
    gradients: dict[str, np.ndarray]
    without_gradient: list[str]


def initial_values(layer: Layer) -> LayerValues:
    """Returns the initial weights and states of a root layer, for seed 0."""
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    state = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.states().items()}
    return LayerValues(weights, state, {})


def perturbed_values(layer: Layer) -> LayerValues:
    """Returns nonzero weights near the initial ones, and the initial states, of a root layer.

    Initial weights of zeros or ones would hide many mistakes.
    """
    weights = {where: tf.constant(_perturb(spec)) for where, spec in layer.weights().items()}
    return initial_values(layer)._replace(weights=weights)


def _perturb(spec: ParamSpec) -> np.ndarray:
    """Returns float32 [*spec.program_shape], the same for a name, however layers are stacked."""
    deviation = 0.5 / max(1, spec.fan_in) ** 0.5
    noise = [
        np.random.default_rng(zlib.crc32(name.encode())).normal(0.0, deviation, spec.shape)
        for name in path.names(spec.path)
    ]
    return initial_value(spec, 0) + np.reshape(noise, spec.program_shape).astype(np.float32)


def values_of(layer: Layer, root: LayerValues) -> LayerValues:
    """Returns the values of a layer inside a tree, of the first copy where copies are stacked."""
    shape = path.stack_shape(layer.path)
    prefix = layer.path and f"{layer.path}/"

    def own(values: Mapping[str, Any]) -> dict[str, Any]:
        first = (0,) * len(shape)
        return {k: v[first] if shape else v for k, v in values.items() if k.startswith(prefix)}

    return LayerValues(own(root.weights), own(root.state), _first_indices(layer.path))


def _first_indices(where: str) -> dict[str, int]:
    """Returns the first index of each slice in a path, by the path up to that slice."""
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
    """Computes a call of a layer, and the gradient of a sum over all of its results."""
    given = as_tensors((values.weights, values.state, call.rows, call.args, dict(call.inputs)))
    key = random.root_key(1) if training else None
    fields = {"training": training, "key": key, "compiled": engine == "xla"}

    def step() -> Any:
        # tensors of the graph, as in a training step: the gradient of a loop with a rematerialized
        # layer cannot capture other tensors
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
    copies = values.indices  # if there are copies, values belong to one of them
    named = {k: v.numpy() for k, v in reached.items()} if copies else by_name(reached)
    return LayerResult([v.numpy() for v in outputs], named, without)


def run(function: Callable[[], Any], engine: Engine) -> Any:
    """Returns the tensors that a function returns, computed by an engine."""
    if engine == "eager":
        return function()
    compiled = tf.function(function, autograph=False, jit_compile=engine == "xla")
    return compiled.get_concrete_function()()


def compute_by_steps(
    layer: Layer, values: LayerValues, x: Any, sizes: Sequence[int], **inputs: Any
) -> np.ndarray:
    """Computes the layer's steps on chunks of x, [B, T, ...] of any type; `sizes` are the chunks'.

    `inputs` are further inputs, [B, T, ...]. Returns the steps' concatenated results, [B, T, ...].
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
    """Returns tensors by program path as arrays by the names of single layers."""
    arrays = {}
    for where, value in tensors.items():
        parts = value.numpy().reshape(-1, *value.shape[len(path.stack_shape(where)) :])
        arrays |= dict(zip(path.names(where), parts, strict=True))
    return arrays


def as_tensors(structure: Any) -> Any:
    """Returns a structure with tensors in place of arrays."""
    return tf.nest.map_structure(
        lambda v: tf.constant(np.asarray(v)) if isinstance(v, (np.ndarray, np.generic)) else v,
        structure,
    )


# ---- copies --------------------------------------------------------------------------------------


class SideBySide(Layer):
    """Two copies of a layer along a lifted axis."""

    layer: Layer  # what is lifted

    def setup(self) -> None:
        self.layer = self.copies(
            "layers", self.p.layer.build(**inherited_values()), 2, axis="stage"
        )

    def __call__(self, *args: tf.Tensor, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [2, ...] results of [2, ...] args, any types; both get the same `inputs`."""
        return vmap_layer(self.layer, 2, *args, axis="stage", common={"inputs": inputs})


class OneByOne(Layer):
    """The same two copies, called one after the other."""

    layer: Layer  # what is copied

    def setup(self) -> None:
        self.layers = [self.p.layer.build(**inherited_values()) for _ in range(2)]

    def __call__(self, *args: tf.Tensor, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        """Returns [2, ...] results of [2, ...] args, any types; both get the same `inputs`."""
        results = [
            layer(*(arg[i] for arg in args), inputs=inputs) for i, layer in enumerate(self.layers)
        ]
        return tf.nest.map_structure(lambda *values: tf.stack(values), *results)
