"""The transducer's loss against all paths, its gradient against finite differences."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.speech.transducer import scores_of_logits, transducer_losses, transducer_scores


def brute_force(logits: np.ndarray, labels: list[int]) -> float:
    """Returns the loss over all orders of blanks and labels; logits are [T, U + 1, V]."""
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    frames, total = len(logits), -math.inf
    for places in itertools.combinations(range(frames - 1 + len(labels)), len(labels)):
        t = u = 0
        path = 0.0
        for step in range(frames - 1 + len(labels)):
            if step in places:
                path += log_p[t, u, labels[u]]
                u += 1
            else:
                path += log_p[t, u, 0]
                t += 1
        total = np.logaddexp(total, path + log_p[t, u, 0])
    return -total


def losses(logits: tf.Tensor, labels: np.ndarray, frames: list[int], sizes: list[int]) -> tf.Tensor:
    scores = scores_of_logits(logits, tf.constant(labels))
    return transducer_losses(scores, tf.constant(frames), tf.constant(sizes))


@pytest.mark.parametrize(
    ("logits", "labels", "loss"),
    [
        (np.zeros([2, 2, 2]), [1], math.log(4)),
        (np.zeros([3, 3, 3]), [1, 2], -math.log(6 / 243)),
        (
            np.fromfunction(lambda t, u, v: np.sin(1 + t + 2 * u + 3 * v), (3, 3, 3)),
            [1, 2],
            5.236414692,
        ),
    ],
)
def test_published_losses(logits: np.ndarray, labels: list[int], loss: float) -> None:
    found = losses(tf.constant(logits[None]), np.array([labels]), [len(logits)], [len(labels)])
    assert float(found[0]) == pytest.approx(loss, abs=2e-6)
    assert brute_force(logits, labels) == pytest.approx(loss, abs=2e-6)


def test_any_lengths_in_a_batch_give_the_sum_over_all_paths() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[7, 5, 5, 4]) * 2
    labels = rng.integers(1, 4, [7, 4])
    frames, sizes = [5, 5, 1, 2, 3, 1, 0], [4, 0, 4, 1, 3, 0, 2]
    found = losses(tf.constant(logits), labels, frames, sizes)
    for one, label, num, size, loss in zip(logits, labels, frames, sizes, found, strict=True):
        wanted = brute_force(one[:num, : size + 1], label[:size].tolist()) if num else 0.0
        assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_the_gradient_is_that_of_finite_differences_and_0_in_padding() -> None:
    rng = np.random.default_rng(1)
    logits, h = rng.normal(size=[3, 4, 3, 3]), 1e-4
    labels, frames, sizes = np.array([[1, 2], [2, 1], [1, 1]]), [4, 3, 0], [2, 1, 2]
    with tf.GradientTape() as tape:
        x = tf.constant(logits)
        tape.watch(x)
        total = tf.reduce_sum(losses(x, labels, frames, sizes) * [1.0, 2.0, 3.0])
    gradient = tape.gradient(total, x).numpy()
    expected = np.zeros_like(gradient)
    for i, scale in ((0, 1), (1, 2)):
        part = (slice(frames[i]), slice(sizes[i] + 1))
        for at in np.ndindex(frames[i], sizes[i] + 1, 3):
            both = []
            for sign in (1, -1):
                moved = logits[i][part].copy()
                moved[at] += sign * h
                both.append(brute_force(moved, labels[i, : sizes[i]].tolist()))
            expected[(i, *at)] = scale * (both[0] - both[1]) / (2 * h)
    np.testing.assert_allclose(gradient, expected, atol=2e-5)


def test_frame_by_frame_scores_give_the_same_losses_and_gradients() -> None:
    rng = np.random.default_rng(2)
    encoded = tf.constant(rng.normal(size=[2, 4, 3]), tf.float32)
    predicted = tf.constant(rng.normal(size=[2, 3, 3]), tf.float32)
    w = tf.constant(rng.normal(size=[3, 5]), tf.float32)
    labels, sizes = tf.constant([[1, 4], [2, 2]]), (tf.constant([4, 3]), tf.constant([2, 1]))

    def joint(frame: tf.Tensor, predicted: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.tanh(frame[:, None] + predicted) @ w

    def by_frame(encoded: tf.Tensor, predicted: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return transducer_losses(transducer_scores(joint, encoded, predicted, labels, w), *sizes)

    def at_once(encoded: tf.Tensor, predicted: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        logits = tf.tanh(encoded[:, :, None] + predicted[:, None]) @ w
        return transducer_losses(scores_of_logits(logits, labels), *sizes)

    def gradients(function) -> list[tf.Tensor]:
        arguments = [encoded, predicted, w]
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = function(*arguments)
        return [loss, *tape.gradient(loss, arguments)]

    expected = gradients(at_once)
    compiled = tf.function(lambda: gradients(by_frame), jit_compile=True, autograph=False)
    for result in (gradients(by_frame), compiled()):
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_logits_of_all_nodes_are_never_in_memory() -> None:
    shape = {"encoded": [2, 50, 8], "predicted": [2, 21, 8], "w": [8, 64]}
    labels, sizes = tf.ones([2, 20], tf.int32), (tf.constant([50, 50]), tf.constant([20, 20]))

    @tf.function(jit_compile=True, autograph=False)
    def step(encoded: tf.Tensor, predicted: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([encoded, predicted, w])
            scores = transducer_scores(
                lambda f, p, w: tf.tanh(f[:, None] + p) @ w, encoded, predicted, labels, w
            )
            loss = transducer_losses(scores, *sizes)
        return tape.gradient(loss, [encoded, predicted, w])

    tensors = {name: tf.zeros(size) for name, size in shape.items()}
    text = step.experimental_get_compiler_ir(**tensors)(stage="optimized_hlo")
    most = max(
        math.prod(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)
    )
    assert most < 2 * 50 * 21 * 64 / 4


def test_an_impossible_step_leaves_a_finite_gradient() -> None:
    logits = np.zeros([1, 3, 2, 3], np.float32)
    logits[0, 1, 0, 1] = -1e9
    with tf.GradientTape() as tape:
        x = tf.constant(logits)
        tape.watch(x)
        loss = losses(x, np.array([[1]]), [3], [1])
    assert float(loss[0]) == pytest.approx(-math.log(1 / 3**4 + 1 / 3**3 / 2), rel=1e-5)
    assert np.isfinite(tape.gradient(loss, x)).all()
