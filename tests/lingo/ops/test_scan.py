"""Loops, against NumPy: eager, in a graph and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.scan import accumulate, output_specs, scan

N, D = 3, 2
X = np.random.default_rng(0).normal(size=[N, D]).astype(np.float32)


def eager(function: Callable) -> Callable:
    return function


def graph(function: Callable) -> Callable:
    return tf.function(function, autograph=False)


def xla(function: Callable) -> Callable:
    return tf.function(function, autograph=False, jit_compile=True)


in_every_way = pytest.mark.parametrize("way", [eager, graph, xla])


def decay(i: Any, carry: Any, x: Any) -> Any:
    carry = 0.5 * carry + x["x"] * tf.cast(i, tf.float32)
    return carry, {"square": carry * carry, "turn": i}


def expected() -> tuple[np.ndarray, list[np.ndarray]]:
    carry, squares = np.ones(D, "f"), []
    for i in range(N):
        carry = 0.5 * carry + X[i] * i
        squares.append(carry * carry)
    return carry, squares


@in_every_way
def test_scan_equals_a_loop_in_numpy(way: Callable) -> None:
    run = way(lambda c, x: scan(decay, c, {"x": x}, N))
    carry, outputs = run(tf.ones(D), tf.constant(X))
    np.testing.assert_allclose(carry, expected()[0], rtol=1e-6)
    np.testing.assert_allclose(outputs["square"], expected()[1], rtol=1e-6)
    np.testing.assert_array_equal(outputs["turn"], range(N))


@in_every_way
def test_gradients_equal_those_of_the_unrolled_loop(way: Callable) -> None:
    def scanned(x: Any) -> Any:
        carry, outputs = scan(decay, tf.ones(D), {"x": x}, N)
        return tf.reduce_sum(carry) + tf.reduce_sum(outputs["square"])

    def unrolled(x: Any) -> Any:
        carry, loss = tf.ones(D), 0.0
        for i in range(N):
            carry, outputs = decay(i, carry, {"x": x[i]})
            loss += tf.reduce_sum(outputs["square"])
        return loss + tf.reduce_sum(carry)

    def gradient(loss: Callable) -> Callable:
        def run(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = loss(x)
            return tape.gradient(y, x)

        return run

    x = tf.constant(X)
    np.testing.assert_allclose(way(gradient(scanned))(x), gradient(unrolled)(x), rtol=1e-5)


def test_the_number_of_turns_may_be_known_only_at_run_time() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, D])])
    def run(x: Any) -> Any:
        return scan(decay, tf.ones(D), {"x": x}, tf.shape(x)[0])

    for n in (1, N):
        carry, outputs = run(tf.constant(X[:n]))
        np.testing.assert_allclose(outputs["square"], expected()[1][:n], rtol=1e-6)
        np.testing.assert_allclose(carry**2, expected()[1][n - 1], rtol=1e-5)


def test_a_scan_without_inputs_or_outputs_counts() -> None:
    carry, outputs = scan(lambda i, c, _: (c + i, ()), tf.constant(0), (), 5)
    assert carry.numpy() == 10
    assert outputs == ()


@pytest.mark.parametrize("num", [2, 20])
def test_the_body_is_traced_twice_whatever_the_number_of_turns(num: int) -> None:
    traces = []

    def body(i: Any, carry: Any, x: Any) -> Any:
        traces.append(i)
        return carry + x, ()

    scan(body, tf.zeros([]), tf.ones([num]), num)
    assert len(traces) == 2


@in_every_way
def test_accumulate_adds_every_output(way: Callable) -> None:
    def part(x: Any) -> Any:
        return {"sum": tf.reduce_sum(x), "square": [x * x]}

    sums = way(lambda x: accumulate(part, x, N))(tf.constant(X))
    np.testing.assert_allclose(sums["sum"], X.sum(), rtol=1e-5)
    np.testing.assert_allclose(sums["square"][0], (X * X).sum(0), rtol=1e-5)


def test_output_specs_compute_nothing() -> None:
    specs = output_specs(lambda x, n: {"y": tf.cast(x, tf.int32)[:, None], "n": n}, X, tf.range(4))
    assert (specs["y"].shape.as_list(), specs["y"].dtype) == ([N, 1, D], tf.int32)
    assert (specs["n"].shape.as_list(), specs["n"].dtype) == ([4], tf.int32)


def test_turns_do_not_overlap() -> None:
    """Also those that do not wait for each other: else several hold their inner values at once."""

    def squares(x: tf.Tensor) -> tf.Tensor:
        return scan(lambda i, carry, x: (carry, x**2), (), x, 4)[1]

    graph = tf.function(squares, autograph=False).get_concrete_function(tf.ones([4])).graph
    (loop,) = [op for op in graph.get_operations() if "While" in op.type]
    assert loop.get_attr("parallel_iterations") == 1
