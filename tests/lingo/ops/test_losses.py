"""Losses against slow NumPy and Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import losses as losses_module
from lingo.ops.losses import cross_entropy, smooth_l1, token_losses

DRAW = np.random.default_rng(0)
LOGITS = 3 * DRAW.normal(size=[2, 3, 5])
TARGETS = DRAW.integers(0, 5, [2, 3])


def losses(label_smoothing: float = 0.0) -> list[np.ndarray]:
    logits, targets = tf.constant(LOGITS, tf.float32), tf.constant(TARGETS, tf.int32)
    return [v.numpy() for v in token_losses(logits, targets, label_smoothing=label_smoothing)]


def test_cross_entropy_equals_minus_log_softmax() -> None:
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(probabilities, TARGETS[..., None], -1)[..., 0])
    actual = cross_entropy(tf.constant(LOGITS, tf.float32), tf.constant(TARGETS, tf.int32))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_large_logits_do_not_overflow() -> None:
    logits = tf.constant([[[1e30, 0.0], [1000.0, 1001.0]]])
    expected = [[0.0, np.log1p(np.exp(-1.0))]]
    np.testing.assert_allclose(cross_entropy(logits, [[0, 1]]), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_losses_are_float32_whatever_the_logits_are(dtype: str) -> None:
    assert cross_entropy(tf.zeros([1, 2, 3], dtype), [[0, 1]]).dtype == tf.float32
    found = token_losses(tf.zeros([1, 2, 3], dtype), tf.constant([[0, 1]]), label_smoothing=0.1)
    assert {value.dtype for value in found} == {tf.float32}


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_label_smoothing_is_that_of_keras(rate: float) -> None:
    keras = tf.keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=rate, reduction=None
    )
    expected = keras(np.eye(5)[TARGETS], LOGITS)
    np.testing.assert_allclose(losses(rate)[0], expected, rtol=1e-5)


def test_the_z_loss_is_the_square_of_the_logarithm_of_the_sum() -> None:
    expected = np.log(np.exp(LOGITS).sum(-1)) ** 2
    np.testing.assert_allclose(losses()[1], expected, rtol=1e-5)
    np.testing.assert_allclose(losses(label_smoothing=0.3)[1], expected, rtol=1e-5)


@pytest.mark.parametrize("error", [-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 7.0])
def test_smooth_l1_is_a_parabola_near_zero_and_a_line_beyond(error: float) -> None:
    expected = 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
    x = tf.constant(error)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = smooth_l1(x)
    assert float(loss) == expected
    assert float(tape.gradient(loss, x)) == np.clip(error, -1, 1)


def test_logits_of_more_elements_than_int32_counts_have_the_same_losses(monkeypatch) -> None:
    draw = np.random.default_rng(0)
    logits = tf.constant(draw.normal(size=[2, 3, 7]), tf.float32)
    targets = tf.constant(draw.integers(0, 7, [2, 3]), tf.int32)

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            both = token_losses(logits, targets, label_smoothing=0.1)
            total = tf.reduce_sum(both.cross_entropy + both.z_loss)
        return tape.gradient(total, logits)

    few = gradient()
    monkeypatch.setattr(losses_module, "_GATHER_LIMIT", 1)
    np.testing.assert_allclose(gradient(), few, atol=1e-6)


def test_the_gradient_of_a_pods_logits_is_traced() -> None:
    """2,048 rows of 256 tokens, of a vocabulary of 33,708, as in MLPerf's Transformer."""

    def gradient(logits: tf.Tensor, targets: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            total = token_losses(logits, targets, label_smoothing=0.1).cross_entropy
        return tape.gradient(total, logits)

    shape = [2048, 256, 33_708]
    specs = [tf.TensorSpec(shape, tf.float32), tf.TensorSpec(shape[:2], tf.int32)]
    traced = tf.function(gradient, autograph=False).get_concrete_function(*specs)
    assert traced.output_shapes == shape
