"""Scans and pipelines give what separate layers give, whatever these hand out and remember.

Axes: B batch, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.inspection.conformance.layer_call import by_name
from lingo.layers import Layer, Linear, Pipeline, Remat, Stack, context, path
from lingo.layers.dropout import dropout
from lingo.layers.stacks.repeat import Repeat, find_disconnected, layer_index
from lingo.layers.tree import ParamSpec
from lingo.layers.wrap.remat import recompute
from lingo.learner.state import initial_value
from lingo.learner.step import accumulate_sums
from lingo.ops import random
from tests.lingo.layers.stacks.compare import assert_same

B, T, D = 4, 3, 2
X = np.random.default_rng(0).normal(size=[B, T, D]).astype(np.float32)


class Running(Layer):
    """A layer with everything: each position gets a sum over those before it."""

    dim: int = D  # width

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim] * 2, axes=("embed", None))
        self.mean = self.state("mean", [self.p.dim], decay=0.5)
        self.total = self.cache("total", [self.p.dim], axes=("embed",))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        y = self._output(x, tf.cumsum(tf.einsum("btd,de->bte", x, self.w), axis=1))
        y = dropout(self, y, rate=0.4)
        weight = tf.cast(tf.size(y[..., 0]), tf.float32)
        self.batch_statistic("mean", tf.reduce_sum(y, [0, 1]), weight)
        self.side_loss("size", tf.reduce_sum(y * y))
        self.side_metric("level", {"sum": tf.reduce_sum(y), "weight": weight})
        return y

    def step(self, x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        total = self.total + tf.einsum("btd,de->be", x, self.w)
        self.new_cache("total", total)
        return self._output(x, total[:, None])

    def _output(self, x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        return x + tf.tanh(total) - self.mean


RUNNING, LINEAR = Running.params(), Linear.params(dim=D, output_dim=D)
FLAT = Stack.params(layer=RUNNING.copy(), num_layers=4)
NESTED = Stack.params(layer=Stack.params(layer=RUNNING.copy(), num_layers=2), num_layers=2)
MIXED = Stack.params(layer=[RUNNING.copy(), LINEAR.copy()], num_layers=4)


def pipeline(layer: Any, **fields: Any) -> Params:
    layer = [one.copy() for one in layer] if isinstance(layer, list) else layer.copy()
    return Pipeline.params(layer=layer, num_layers=4, **fields)


STRUCTURES = {
    "repeat": (FLAT, Repeat.params(layer=RUNNING.copy(), num_layers=4)),
    "repeat of remat": (
        FLAT,
        Repeat.params(layer=Remat.params(layer=RUNNING.copy()), num_layers=4),
    ),
    "repeat of repeat": (
        NESTED,
        Repeat.params(layer=Repeat.params(layer=RUNNING.copy(), num_layers=2), num_layers=2),
    ),
    "pattern": (MIXED, Repeat.params(layer=[RUNNING.copy(), LINEAR.copy()], num_layers=4)),
    "one stage": (FLAT, pipeline(RUNNING, num_stages=1, num_micro_batches=2)),
    "pipeline": (FLAT, pipeline(RUNNING, num_stages=2, num_micro_batches=2)),
    "pipeline, one micro-batch": (FLAT, pipeline(RUNNING, num_stages=4, num_micro_batches=1)),
    "pipeline, filled up": (FLAT, pipeline(RUNNING, num_stages=3, num_micro_batches=2)),
    "pipeline, remat": (FLAT, pipeline(RUNNING, num_stages=2, num_micro_batches=2, remat=True)),
    "circular": (
        FLAT,
        pipeline(RUNNING, num_stages=2, num_micro_batches=2, circular_repeats=2, remat=True),
    ),
    "circular, one stage": (
        FLAT,
        pipeline(RUNNING, num_stages=1, num_micro_batches=2, circular_repeats=2),
    ),
    "pipeline of stack": (
        NESTED,
        pipeline(
            Stack.params(layer=RUNNING.copy(), num_layers=2), num_stages=2, num_micro_batches=2
        ).set(num_layers=2),
    ),
    "pipeline of a pattern": (
        MIXED,
        pipeline([RUNNING, LINEAR], num_stages=2, num_micro_batches=2, remat=True),
    ),
}
over_structures = pytest.mark.parametrize(
    ("plain", "other"), STRUCTURES.values(), ids=list(STRUCTURES)
)


def values(specs: dict[str, ParamSpec], seed: int) -> dict[str, Any]:
    """Returns values that depend on the names of single layers alone."""

    def value(name: str, shape: Any) -> np.ndarray:
        return 0.3 * np.random.default_rng([seed, random.text_hash(name)]).normal(size=shape)

    return {
        where: tf.constant(
            np.reshape([value(name, spec.shape) for name in path.names(where)], spec.program_shape),
            tf.float32,
        )
        for where, spec in specs.items()
    }


def sums(params: Params, *, num_parts: int = 1, eager: bool = False) -> dict[str, np.ndarray]:
    """Returns all that a training step adds up, by the names of single layers."""
    layer = params.build()
    weights, state = values(layer.weights(), 0), values(layer.states(), 1)

    def part(batch: Any) -> dict[str, Any]:
        call = {"state": state, "training": True, "key": random.root_key(2), "rows": batch["rows"]}
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y, sides = context.apply(layer, weights, batch["x"], call=call)
            loss = tf.reduce_sum(tf.sin(y)) + sides.losses["size"]
        moments = {
            f"{k}/{part}": v for k, m in sides.batch_statistics.items() for part, v in m.items()
        }
        gradients = {f"d {k}": v for k, v in tape.gradient(loss, weights).items()}
        level = sides.metrics["level"]
        return {"loss": loss, "size": sides.losses["size"], **level, **moments, **gradients}

    batch = {"x": tf.constant(X), "rows": tf.range(B)}
    if eager:
        return by_name(accumulate_sums(part, batch, num_parts))
    step = tf.function(lambda batch: accumulate_sums(part, batch, num_parts), autograph=False)
    return by_name(step(batch))


@over_structures
def test_side_outputs_and_gradients_are_those_of_separate_layers(plain, other):
    expected = sums(plain, eager=True)
    assert any(name.endswith("mean/sum") for name in expected)
    assert_same(sums(other), expected)


@pytest.mark.parametrize(
    "name",
    ["repeat of remat", "pattern", "pipeline", "circular"],
)
def test_so_are_those_of_a_batch_in_two_parts(name: str) -> None:
    plain, other = STRUCTURES[name]
    assert_same(sums(other, num_parts=2), sums(plain, eager=True))


def stepped(params: Params) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Returns the output of each position, and the caches after the last."""
    layer = params.build()
    weights, state = values(layer.weights(), 0), values(layer.states(), 1)
    caches = layer.empty_caches(batch_size=B, length=T)
    outputs = []
    for i in range(T):
        call = {"state": state, "caches": caches}
        y, sides = context.apply(
            layer, weights, tf.constant(X[:, i : i + 1]), i, method="step", call=call
        )
        caches = sides.caches
        outputs.append(y.numpy())
    return outputs, by_name(caches)


@over_structures
def test_a_position_after_the_other_equals_all_at_once(plain: Params, other: Params) -> None:
    layer = plain.build()
    call = {"state": values(layer.states(), 1), "key": None}
    whole, _ = context.apply(layer, values(layer.weights(), 0), tf.constant(X), call=call)
    outputs, caches = stepped(other)
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, rtol=1e-4, atol=1e-5)
    assert_same(caches, stepped(plain)[1])


@over_structures
def test_names_and_initial_values_are_those_of_separate_layers(plain, other):
    one, two = (
        by_name({k: tf.constant(initial_value(s, 7)) for k, s in layer.weights().items()})
        for layer in (plain.build(), other.build())
    )
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name])


def test_the_graph_does_not_grow_with_the_number_of_layers() -> None:
    def size(num_layers: int) -> int:
        layer = Repeat.params(layer=RUNNING.copy(), num_layers=num_layers).build()
        weights, state = values(layer.weights(), 0), values(layer.states(), 1)
        function = tf.function(
            lambda x: context.apply(layer, weights, x, call={"state": state})[0], autograph=False
        )
        definition = function.get_concrete_function(X).graph.as_graph_def()
        return len(definition.node) + sum(len(f.node_def) for f in definition.library.function)

    assert size(2) == size(20)


def test_a_layer_of_narrower_type_leaves_the_type_of_the_scan() -> None:
    layer = Repeat.params(layer=LINEAR.copy().set(dtype="bfloat16"), num_layers=2).build()
    y, _ = context.apply(layer, values(layer.weights(), 0), tf.constant(X))
    assert y.dtype == tf.float32
    assert np.isfinite(y).all()


def test_the_index_of_a_layer_counts_those_of_the_whole_pattern() -> None:
    layer = Repeat.params(layer=[LINEAR.copy(), LINEAR.copy()], num_layers=6).build()
    assert [layer_index(child, 2) for child in layer.body] == [4, 5]
    with pytest.raises(ValueError, match="is not a layer of `copies`"):
        layer_index(layer, 0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: x + y, set()),
        (lambda x, y: x, {"y"}),
        (lambda x, y: {"a": [x, None, 3], "b": x}, {"y"}),
        (lambda x, y: x * tf.stop_gradient(y), {"y"}),
        (lambda x, y: tf.stop_gradient(x) * y + x, set()),
        (lambda x, y: tf.cond(x > 0, lambda: x, lambda: x + 1), {"y"}),
        (lambda x, y: tf.while_loop(lambda i: i < 3, lambda i: i + y, [x]), set()),
        (lambda x, y: recompute(lambda x, y: 2 * x, x, y), {"y"}),
        (lambda x, y: recompute(lambda x, y: x * y, x, y), set()),
    ],
)
def test_only_inputs_that_an_output_depends_on_are_connected(function, expected):
    found = []

    @tf.function(autograph=False)
    def trace(x, y):
        found.append(find_disconnected(function(x, y), {"x": x, "y": y}))

    trace(tf.constant(1.0), tf.constant(2.0))
    assert found == [expected]
