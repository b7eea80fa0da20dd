"""Loops, against NumPy: eager, in a graph and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import jax2tf

from lingo.config.lazy import tf
from lingo.ops.scan import accumulate, output_specs, scan, scan_recomputed

N, D, SIZE = 3, 2, 128
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


@in_every_way
def test_a_reversed_scan_starts_with_the_last_slice_and_keeps_places(way: Callable) -> None:
    run = way(lambda c, x: scan(decay, c, {"x": x}, N, is_reversed=True))
    carry, squares, turns = np.ones(D, "f"), np.zeros([N, D], "f"), []
    for i in reversed(range(N)):
        carry = 0.5 * carry + X[i] * i
        squares[i] = carry * carry
        turns.append(i)
    last, outputs = run(tf.ones(D), tf.constant(X))
    assert turns == [2, 1, 0]
    np.testing.assert_allclose(last, carry, rtol=1e-6)
    np.testing.assert_allclose(outputs["square"], squares, rtol=1e-6)
    np.testing.assert_array_equal(outputs["turn"], range(N))


def test_the_number_of_turns_may_be_known_only_at_run_time() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, D])])
    def run(x: Any) -> Any:
        return scan(decay, tf.ones(D), {"x": x}, tf.shape(x)[0])

    for n in (1, N):
        carry, outputs = run(tf.constant(X[:n]))
        np.testing.assert_allclose(outputs["square"], expected()[1][:n], rtol=1e-6)
        np.testing.assert_allclose(carry**2, expected()[1][n - 1], rtol=1e-5)


def mix(i: Any, carry: Any, x: Any, constants: Any) -> Any:
    """Reads floats and integers, some of them not at all, in nested structures."""
    matrix, (shift, flip, _) = constants["matrix"], constants["more"]
    row = tf.gather(matrix, x["row"])  # its gradient is not dense
    shift *= tf.cast(flip + i, tf.float32)
    total = tf.tanh(tf.linalg.matvec(matrix, carry["total"]) + x["x"] * row) + shift
    count = carry["count"] + x["row"]
    return {"total": total, "count": count}, [(total * shift, count), x["x"] * row]


MIXED = (
    {"total": tf.constant([1.0, -0.5]), "count": tf.constant(2)},
    {"x": tf.constant(X), "row": tf.constant([1, 0, 1])},
    {
        "matrix": tf.constant([[0.3, -0.2], [0.4, 0.1]]),
        "more": (tf.constant(0.7), tf.constant(2), tf.constant([4.0])),
    },
)


def unrolled_mix(_: Any, carry: Any, xs: Any, constants: Any, num: int) -> Any:
    outputs = []
    for i in range(num):
        x = tf.nest.map_structure(lambda v, i=i: v[i], xs)
        carry, y = mix(i, carry, x, constants)
        outputs.append(y)
    return carry, tf.nest.map_structure(lambda *ys: tf.stack(ys), *outputs)


def plain_scan(body: Any, carry: Any, xs: Any, constants: Any, num: int) -> Any:
    return scan(lambda i, c, x: body(i, c, x, constants), carry, xs, num)


def results_and_gradients(loop: Callable, args: Any, num: int = N) -> Any:
    """Returns what a loop of `mix` returns, and the gradients of all floats that it gets."""
    floats = [v for v in tf.nest.flatten(args) if v.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        carry, ys = loop(mix, *args, num)
        loss = tf.reduce_sum(tf.sin(carry["total"])) + tf.reduce_sum(ys[0][0] ** 2 * ys[1])
    return (carry, ys), tape.gradient(
        loss, floats, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )


@in_every_way
def test_a_recomputed_scan_has_the_results_and_gradients_of_any_other(way: Callable) -> None:
    found = way(lambda args: results_and_gradients(scan_recomputed, args))(MIXED)
    for loop in (plain_scan, unrolled_mix):
        expected = results_and_gradients(loop, MIXED)
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
        )


def test_a_recomputed_scan_may_be_inside_another() -> None:
    """As in a pipeline: a loop over stages inside one over micro-batches."""

    def gradients(loop: Callable, way: Callable) -> Any:
        def outer(args: Any) -> Any:
            carry, xs, constants = args

            def body(i: Any, carry: Any, x: Any) -> Any:
                carry, ys = loop(mix, carry, {**xs, "x": xs["x"] * x}, constants, N)
                return carry, ys[0][0]

            with tf.GradientTape() as tape:
                tape.watch([xs["x"], constants["matrix"]])
                last, ys = scan(body, carry, tf.constant([1.0, -2.0]), 2)
                loss = tf.reduce_sum(last["total"] + ys)
            return tape.gradient(loss, [xs["x"], constants["matrix"]])

        return way(outer)(MIXED)

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        gradients(scan_recomputed, xla),
        gradients(plain_scan, graph),
    )


def test_the_number_of_turns_of_a_recomputed_scan_may_be_known_only_at_run_time() -> None:
    run = graph(lambda num, args: results_and_gradients(scan_recomputed, args, num))
    found = run(tf.constant(N), MIXED)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        found,
        results_and_gradients(unrolled_mix, MIXED),
    )


def temporaries(loop: Callable, num: int) -> int:
    """Returns the bytes of temporaries of the gradient of `num` loops over large weights."""
    layers = jax.ShapeDtypeStruct((2, SIZE, SIZE), "float32")

    def gradient(layers: tf.Tensor, x: tf.Tensor) -> Any:
        def body(i: Any, carry: tf.Tensor, layer: tf.Tensor, scale: tf.Tensor) -> Any:
            return tf.linalg.matvec(tf.tanh(layer * scale), carry), ()

        with tf.GradientTape() as tape:
            tape.watch(layers)
            scale = tf.reduce_sum(layers, axis=0)

            def loss(i: Any, total: tf.Tensor, x: tf.Tensor) -> Any:
                return total + tf.reduce_sum(loop(body, x, layers, scale, 2)[0]), ()

            total, _ = scan(loss, tf.constant(0.0), x, num)
        return tape.gradient(total, layers)

    program = jax.jit(jax2tf.call_tf(gradient))
    compiled = program.lower(layers, jax.ShapeDtypeStruct((num, SIZE), "float32")).compile()
    memory: Any = compiled.memory_analysis()
    return memory.temp_size_in_bytes


def test_a_recomputed_scan_keeps_one_copy_of_weights_for_any_number_of_turns() -> None:
    weights = 2 * SIZE * SIZE * 4
    few, many = (temporaries(scan_recomputed, num) for num in (2, 10))
    assert many - few < 0.1 * weights
    assert temporaries(plain_scan, 10) - many > 8 * weights


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


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_body_is_traced_once_more_for_each_loop_around_it(depth: int) -> None:
    num_traces = 0

    def loop(depth: int, carry: Any, x: Any) -> Any:
        nonlocal num_traces
        num_traces += depth == 0
        if depth == 0:
            return x * carry, {"sum": x + carry}
        return scan(lambda _, c, x: loop(depth - 1, c, x), carry, x, x.shape[0])

    @tf.function(autograph=False)
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            carry, outputs = loop(depth, tf.constant(1.0), x)
        assert outputs["sum"].shape == x.shape
        return tape.gradient(carry, x)

    x = tf.constant(np.random.default_rng(1).uniform(1, 2, size=[2] * depth), tf.float32)
    product = tf.reduce_prod(x)
    np.testing.assert_allclose(gradient(x), product / x, rtol=1e-6)
    assert num_traces == depth + 1


def test_the_gradient_of_a_recomputed_scan_traces_its_body_once() -> None:
    num_traces = 0

    def body(i: Any, carry: Any, x: Any, w: Any) -> Any:
        nonlocal num_traces
        num_traces += 1
        return w * carry + x, (carry, i)

    @tf.function(autograph=False)
    def gradient(w: Any, xs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((w, xs))
            last, _ = scan_recomputed(body, tf.constant(0.0), xs, w, 2)
        before = num_traces
        found = tape.gradient(last, (w, xs))
        assert num_traces == before + 1
        return found

    dw, dx = gradient(tf.constant(3.0), tf.constant([1.0, 2.0]))
    np.testing.assert_allclose([dw, *dx], [1.0, 3.0, 1.0])


def test_a_function_of_tensorflow_keeps_the_trace_of_its_loop() -> None:
    kept = tf.function(
        lambda c, x: scan(lambda _, c, x: (c + x, c), c, x, x.shape[0])[0], autograph=False
    )
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    last, _ = scan(lambda _, c, x: (kept(c, x), c), tf.constant(0.0), x, 2)
    assert float(last) == 10.0


def test_a_loop_inside_another_may_have_no_iterations() -> None:
    def body(i: Any, carry: Any, x: Any) -> Any:
        return scan(lambda _, c, x: (c + x, c), carry, x, 0)

    x = tf.zeros([2, 0, 3])
    last, outputs = scan(body, tf.ones(3), x, 2)
    np.testing.assert_array_equal(last, np.ones(3))
    assert outputs.shape == [2, 0, 3]
