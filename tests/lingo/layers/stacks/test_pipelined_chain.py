"""A chain of unlike layers in stages gives what it gives layer by layer, on devices of its own.

Axes: B batch, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import Chain, Layer, PipelinedChain, context
from lingo.layers.dropout import dropout
from lingo.learner.state import initial_value
from lingo.ops import random

B, D = 8, 4
X = np.random.default_rng(0).normal(size=[B, D]).astype(np.float32)
WIDTHS = [D, 8, 2, 16, 3, 3]


class Dense(Layer):
    """Changes the width, of two tensors: one is summed over, with noise, the other passed on."""

    dim: int  # width of the input
    output_dim: int  # width of the output

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim, self.p.output_dim], axes=("embed", None))
        self.mean = self.state("mean", [self.p.output_dim], decay=0.5)

    def __call__(self, x: Any) -> Any:
        x, passed = x
        y = dropout(self, tf.tanh(x @ self.w), rate=0.3)
        self.batch_statistic("mean", tf.reduce_sum(y, 0), tf.cast(tf.shape(y)[0], tf.float32))
        self.side_loss("size", tf.reduce_sum(y * y))
        return y, passed + tf.reduce_sum(y, axis=1)

    def flops(self, shape: Any) -> int:
        (batch, width), _ = shape
        return 2 * batch * width * self.p.output_dim

    def output_shape(self, shape: Any) -> Any:
        (batch, _), passed = shape
        return (batch, self.p.output_dim), passed


def chain(cls: type[Chain] = Chain, **fields: Any) -> Params:
    layers = [Dense.params(dim=a, output_dim=b) for a, b in itertools.pairwise(WIDTHS)]
    return cls.params(layers=layers, **fields)


def results(params: Params, *, eager: bool = False, **call: Any) -> dict[str, np.ndarray]:
    """Returns outputs, side outputs and gradients of a step in training."""
    layer = params.build()
    weights = {k: tf.constant(initial_value(s, 1)) for k, s in layer.weights().items()}
    states = {k: tf.zeros(s.shape) for k, s in layer.states().items()}
    call = {"state": states, "training": True, "key": random.root_key(3), **call}

    def step() -> dict[str, Any]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            inputs = tf.constant(X), tf.zeros([B])
            (y, passed), sides = context.apply(
                layer, weights, inputs, call={"rows": tf.range(B), **call}
            )
            loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(passed**2) + sides.losses["size"]
        found = {"y": y, "passed": passed, "loss": loss}
        found |= {f"d {k}": g for k, g in tape.gradient(loss, weights).items()}
        return found | {
            f"{k}/{p}": v for k, m in sides.batch_statistics.items() for p, v in m.items()
        }

    found = step() if eager else tf.function(step, autograph=False)()
    return {k: v.numpy() for k, v in found.items()}


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(1, 4), (2, 2), (5, 1), (2, 8)])
def test_outputs_gradients_and_side_outputs_are_those_of_the_chain(num_stages, num_micro_batches):
    fields = {"num_stages": num_stages, "num_micro_batches": num_micro_batches}
    expected, found = results(chain(), eager=True), results(chain(PipelinedChain, **fields))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_stages_are_of_equal_cost() -> None:
    built: Any = chain(PipelinedChain, num_stages=2, num_micro_batches=2).build()
    shape = ((B, D), (B,))
    assert built.layer_flops(shape) == [2 * B * n for n in (32, 16, 32, 48, 9)]
    assert built.stage_layers(shape) == [[range(3), range(3, 5)]]
    built = chain(
        PipelinedChain, num_stages=2, num_micro_batches=2, times=[9.0, 1.0, 1.0, 1.0, 1.0]
    ).build()
    assert built.stage_layers(shape) == [[range(1), range(1, 5)]]


def test_outside_of_training_it_is_a_chain() -> None:
    fields = {"num_stages": 2, "num_micro_batches": 3}  # does not divide the batch
    expected = results(chain(), training=False)
    found = results(chain(PipelinedChain, **fields), training=False)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


class Centered(Layer):
    """Takes the mean over the rows of a call from each of them."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return x - tf.reduce_mean(x, axis=0)

    def output_shape(self, shape: Any) -> Any:
        return shape


def test_rows_are_split_into_micro_batches_as_those_of_a_pipeline_are() -> None:
    fields = {"num_stages": 1, "num_micro_batches": 2}
    layer = PipelinedChain.params(layers=[Centered], times=[1.0], **fields).build()
    y, _ = context.apply(layer, {}, tf.constant(X), call={"training": True})
    for first in range(2):
        rows = X[first::2]
        np.testing.assert_allclose(y[first::2], rows - rows.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_stages": 6, "num_micro_batches": 1}, "6 for 5 layers: each stage needs one"),
        ({"num_stages": 0, "num_micro_batches": 1}, "num_stages=0 is not positive"),
        (
            {"num_stages": 2, "num_micro_batches": 1, "times": [1.0]},
            "has 1 numbers: give one for each",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        chain(PipelinedChain, **fields).build()


def traced(num_micro_batches: int, devices: Mapping[str, str]) -> tuple[int, int]:
    """Returns the operations of a step with gradient: outside of functions, and inside."""
    fields = {"num_stages": 2, "num_micro_batches": num_micro_batches}
    layer = chain(PipelinedChain, **fields).build()
    weights = {k: tf.constant(initial_value(s, 1)) for k, s in layer.weights().items()}
    states = {k: tf.zeros(s.shape) for k, s in layer.states().items()}
    call = {"state": states, "training": True, "key": random.root_key(3), "devices": devices}

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            inputs = tf.constant(X), tf.zeros([B])
            (y, passed), _ = context.apply(
                layer, weights, inputs, call={"rows": tf.range(B), **call}
            )
            loss = tf.reduce_sum(y) + tf.reduce_sum(passed)
        return tape.gradient(loss, weights)

    graph = step.get_concrete_function().graph.as_graph_def()
    return len(graph.node), sum(len(f.node_def) for f in graph.library.function)


def test_the_program_does_not_grow_with_the_number_of_micro_batches() -> None:
    assert traced(2, {}) == traced(8, {})


def test_with_devices_the_program_grows_by_a_few_operations_for_a_stage_and_micro_batch() -> None:
    layers = chain().build().layers
    devices = {layer.path: f"CPU:{i // 3}" for i, layer in enumerate(layers)}
    (few, inside), (many, inside_many) = traced(2, devices), traced(8, devices)
    assert inside == inside_many
    assert 0 < many - few <= 6 * 2 * 20, "20 for each of two stages and 6 more micro-batches"


def test_with_devices_it_computes_the_same() -> None:
    """All are one device here, but the loop over micro-batches is not a loop of the program."""
    params = chain(PipelinedChain, num_stages=2, num_micro_batches=4)
    devices = dict.fromkeys((layer.path for layer in params.build().layers[:3]), "CPU:0")
    devices |= dict.fromkeys((layer.path for layer in params.build().layers[3:]), "/CPU:0")
    expected, found = results(params), results(params, devices=devices)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
