"""Rematerialization: the body runs again for the gradient, less is kept, the numbers stay.

So does a layer that computes its positions in chunks.

Axes: B batch, T positions, D and F widths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import NO_INPUTS, CallInputs, Layer, Repeat, Stack, context
from lingo.layers.context import apply
from lingo.layers.wrap.remat import Remat, in_chunks, recompute
from lingo.ops import random

B, T, D, F = 2, 6, 3, 5
ROWS = tf.constant(np.random.default_rng(0).normal(size=[B, D]).astype(np.float32))


class Deep(Layer):
    """A chain of activations, with a second input and a random number."""

    def setup(self) -> None:
        self.w = self.weight("w", [D, D], axes=(None, None))

    def __call__(self, x: Any, *, inputs: CallInputs = NO_INPUTS) -> Any:
        y = x if inputs.memory is None else x + inputs.memory
        for _ in range(4):
            y = tf.tanh(y @ self.w)
        return y * random.uniform(self.random_key("factor"))


def weights(layer: Layer) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    return {k: tf.constant(draw.normal(size=s.program_shape), tf.float32)
            for k, s in layer.weights().items()}  # fmt: skip


def step(params: Params) -> Any:
    """Returns the graph function that computes gradients of a layer, and its weights."""
    layer = params.build()

    def gradient(weights: Any, x: Any, by: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((weights, x, by))
            call = {"key": random.root_key(0)}
            y, _ = context.apply(layer, weights, x, memory=by, call=call)
        return y, tape.gradient(y, (weights, x, by))

    by = tf.constant(0.5)
    return tf.function(gradient, autograph=False).get_concrete_function(weights(layer), ROWS, by)


def kept(params: Params) -> int:
    """Returns the number of values that the first loop, the forward one, puts out."""
    operations = step(params).graph.get_operations()
    return next(len(op.outputs) for op in operations if op.type in ("While", "StatelessWhile"))


def test_gradients_also_of_further_inputs_stay_the_same() -> None:
    plain = Stack.params(layer=Deep.params(), num_layers=2)
    remat = Stack.params(layer=Remat.params(layer=Deep.params()), num_layers=2)
    results = []
    for params in (plain, remat):
        function = tf.function(step(params))
        results.append(function(weights(params.build()), ROWS, tf.constant(0.5)))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results
    )


def test_fewer_activations_leave_a_scan() -> None:
    plain = kept(Repeat.params(layer=Deep.params(), num_layers=3))
    remat = kept(Repeat.params(layer=Remat.params(layer=Deep.params()), num_layers=3))
    assert remat <= plain - 3


def test_the_body_runs_again_for_the_gradient_and_only_then() -> None:
    runs = []

    def body(x: Any) -> Any:
        runs.append(1)
        return tf.sin(x)

    with tf.GradientTape() as tape:
        tape.watch(ROWS)
        y = recompute(body, ROWS)
    assert len(runs) == 1
    np.testing.assert_allclose(tape.gradient(y, ROWS), np.cos(ROWS), rtol=1e-6)
    assert len(runs) == 2


def test_structures_and_integers_and_none_go_through() -> None:
    def body(x: Any, more: Any) -> Any:
        assert more["none"] is None
        return {"y": x * tf.cast(more["n"], tf.float32), "z": [x * x]}

    n = tf.constant(3)
    with tf.GradientTape() as tape:
        tape.watch(ROWS)
        out = recompute(body, ROWS, {"n": n, "none": None})
        loss = tf.reduce_sum(out["y"]) + tf.reduce_sum(out["z"][0])
    np.testing.assert_allclose(out["y"], 3 * ROWS)
    np.testing.assert_allclose(tape.gradient(loss, ROWS), 3 + 2 * ROWS, rtol=1e-6)


def test_it_costs_the_flops_of_one_layer_and_steps_as_that_does() -> None:
    class Costly(Layer):
        """Knows its price and steps in its own way."""

        def flops(self, shape: Any) -> int:
            return 7

        def step(self, x: Any, index: Any) -> Any:
            return x + index

    remat = Remat.params(layer=Costly.params()).build()
    assert remat.flops([B, D]) == 7
    y, _ = context.apply(remat, {}, ROWS, tf.constant(2.0), method="step")
    np.testing.assert_array_equal(y, ROWS + 2)


X = np.random.default_rng(0).normal(size=[B, T, D]).astype(np.float32)
NUMBERS = np.arange(B * T, dtype=np.int32).reshape(B, T)


class Wide(Layer):
    """Something of each position, by a wide inner value."""

    size: int | None = None  # positions at a time

    def setup(self) -> None:
        self.w = self.weight("w", [D, F], axes=("embed", "mlp"))

    def __call__(self, x: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        def inner(x: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            hidden = tf.tanh(tf.einsum("btd,df->btf", x, self.w))
            hidden *= tf.cast(numbers, tf.float32)[..., None] / T
            return {"sum": tf.reduce_sum(hidden, -1), "largest": tf.reduce_max(hidden, -1)}

        return in_chunks(inner, x, numbers, layers=[self], size=self.p.size)


def computed(draw: Callable, size: int | None, *, jit: bool = False, eager: bool = False) -> Any:
    """Returns outputs, and gradients of the input and the weights."""
    layer = Wide.params(size=size).build()

    def step(weights: Any, x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            outputs, _ = apply(layer, weights, x, tf.constant(NUMBERS))
            total = tf.add_n([tf.reduce_sum(tf.sin(v)) for v in outputs.values()])
        return outputs, tape.gradient(total, [x, weights])

    step = step if eager else tf.function(step, autograph=False, jit_compile=jit)
    return step(draw(layer), tf.constant(X))


def assert_same(a: Any, b: Any) -> None:
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), a, b)


@pytest.mark.parametrize(
    ("size", "how"),
    [(1, {}), (2, {}), (4, {}), (6, {}), (7, {}), (4, {"jit": True}), (4, {"eager": True})],
)  # 4 and 7 leave a chunk to fill up
def test_chunks_of_any_size_give_the_values_and_gradients_of_the_whole(size, how, draw):
    assert_same(computed(draw, size, **how), computed(draw, None, **how))


def test_sizes_may_be_unknown_when_it_is_traced(with_weights) -> None:
    layer, weights = with_weights(Wide.params(size=4).build())
    specs = tf.TensorSpec([None, None, D], tf.float32), tf.TensorSpec([None, None], tf.int32)
    call = tf.function(lambda x, n: apply(layer, weights, x, n)[0], specs, autograph=False)
    for length in (1, 5, 6):
        expected, _ = apply(layer, weights, X[:, :length], NUMBERS[:, :length])
        assert_same(call(X[:, :length], NUMBERS[:, :length]), expected)


@pytest.mark.parametrize("size", [2, None])
def test_the_program_has_inner_values_of_one_chunk_only(size: int | None, with_weights) -> None:
    layer, weights = with_weights(Wide.params(size=size).build())

    @tf.function(autograph=False, jit_compile=True)
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs, _ = apply(layer, weights, x, tf.constant(NUMBERS))
        return tape.gradient(outputs, x)

    program = step.experimental_get_compiler_ir(tf.constant(X))(stage="optimized_hlo")
    shapes = re.findall(r"f32\[([\d,]+)\]", program)
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    assert (largest < B * T * F) == (size is not None)
