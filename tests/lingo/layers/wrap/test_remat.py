"""Rematerialization: the body runs again for the gradient, less is kept, the numbers stay.

Axes: B batch, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import NO_INPUTS, CallInputs, Layer, Repeat, Stack, context
from lingo.layers.wrap.remat import Remat, recompute
from lingo.ops import random

B, D = 2, 3
X = tf.constant(np.random.default_rng(0).normal(size=[B, D]).astype(np.float32))


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
    return tf.function(gradient, autograph=False).get_concrete_function(weights(layer), X, by)


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
        results.append(function(weights(params.build()), X, tf.constant(0.5)))
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
        tape.watch(X)
        y = recompute(body, X)
    assert len(runs) == 1
    np.testing.assert_allclose(tape.gradient(y, X), np.cos(X), rtol=1e-6)
    assert len(runs) == 2


def test_structures_and_integers_and_none_go_through() -> None:
    def body(x: Any, more: Any) -> Any:
        assert more["none"] is None
        return {"y": x * tf.cast(more["n"], tf.float32), "z": [x * x]}

    n = tf.constant(3)
    with tf.GradientTape() as tape:
        tape.watch(X)
        out = recompute(body, X, {"n": n, "none": None})
        loss = tf.reduce_sum(out["y"]) + tf.reduce_sum(out["z"][0])
    np.testing.assert_allclose(out["y"], 3 * X)
    np.testing.assert_allclose(tape.gradient(loss, X), 3 + 2 * X, rtol=1e-6)


def test_it_costs_the_flops_of_one_layer_and_steps_as_that_does() -> None:
    class Costly(Layer):
        """Knows its price and steps in its own way."""

        def flops(self, shape: Any) -> int:
            return 7

        def step(self, x: Any, index: Any) -> Any:
            return x + index

    remat = Remat.params(layer=Costly.params()).build()
    assert remat.flops([B, D]) == 7
    y, _ = context.apply(remat, {}, X, tf.constant(2.0), method="step")
    np.testing.assert_array_equal(y, X + 2)
