"""Losses against slow NumPy and Keras."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops import losses as losses_module
from lingo.ops.losses import cross_entropy, huber, log_probs, smooth_l1, token_losses

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
    found = log_probs(tf.constant(LOGITS, tf.float32), tf.constant(TARGETS, tf.int32))
    np.testing.assert_allclose(found, -expected, rtol=1e-5)


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


def test_the_huber_loss_is_that_of_published_examples_and_delta_times_smooth_l1() -> None:
    errors, delta = tf.constant([0.05, 0.5, -0.5]), 1 / 9
    found = huber(errors, delta=delta).numpy()
    np.testing.assert_allclose(found, [0.00125, 0.049382716, 0.049382716], rtol=1e-6)
    np.testing.assert_allclose(found / delta, [0.01125, 0.444444444, 0.444444444], rtol=1e-6)
    np.testing.assert_allclose(huber(errors, delta=1.0), smooth_l1(errors), rtol=1e-7)


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


# ---- losses of vectors: values of optax, written by tools/oracles/losses.py


OPTAX = json.loads((pathlib.Path(__file__).parent / "losses.json").read_text())
VECTORS = [np.array(x, np.float32) for x in OPTAX["vectors"]]
CLASSES = np.array([0, 1, 2, 0, 1, 2])


def test_triplet_losses_equal_optax() -> None:
    found = losses_module.triplet_losses(*map(tf.constant, VECTORS), margin=2.0)
    np.testing.assert_allclose(found, OPTAX["triplet"], rtol=1e-5)


def test_the_contrastive_loss_of_pairs_equals_optax() -> None:
    found = losses_module.contrastive_losses(VECTORS[0], CLASSES, temperature=0.5)
    np.testing.assert_allclose(tf.reduce_mean(found), OPTAX["contrastive"], rtol=1e-5)


def test_the_contrastive_loss_of_several_positives_against_loops() -> None:
    x = VECTORS[1].astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels, expected = np.array([0, 1, 0, 0, 1, 2]), []
    for i in range(6):
        others = np.sum([np.exp(x[i] @ x[a] / 0.2) for a in range(6) if a != i])
        same = [p for p in range(6) if p != i and labels[p] == labels[i]]
        shares = [np.exp(x[i] @ x[p] / 0.2) / others for p in same]
        expected.append(-np.mean(np.log(shares)) if same else 0.0)
    found = losses_module.contrastive_losses(VECTORS[1], labels, temperature=0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_hardest_triplets_against_loops() -> None:
    x, labels, expected = VECTORS[2].astype(np.float64), np.array([0, 1, 0, 0, 1, 2]), []
    for i in range(6):
        far = [np.linalg.norm(x[i] - x[p]) for p in range(6) if p != i and labels[p] == labels[i]]
        near = [np.linalg.norm(x[i] - x[n]) for n in range(6) if labels[n] != labels[i]]
        expected.append(max(max(far) - min(near) + 0.5, 0.0) if far else 0.0)
    found = losses_module.hardest_triplet_losses(VECTORS[2], labels, margin=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["contrastive_losses", "hardest_triplet_losses"])
def test_gradients_of_equal_vectors_are_finite(name: str) -> None:
    x = tf.Variable(np.ones([4, 3], np.float32))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(getattr(losses_module, name)(x, tf.constant([0, 0, 1, 1])))
    assert np.isfinite(tape.gradient(total, x)).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_losses_equal_keras(gamma: float) -> None:
    nats = cross_entropy(tf.constant(LOGITS, tf.float32), tf.constant(TARGETS, tf.int32))
    one_hot = np.eye(5, dtype=np.float32)[TARGETS]
    expected = keras.losses.CategoricalFocalCrossentropy(
        alpha=1.0, gamma=gamma, from_logits=True, reduction=None
    )(one_hot, LOGITS.astype(np.float32))
    found = losses_module.focal_losses(nats, gamma)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_gradient_of_a_focal_loss_is_finite_where_the_answer_is_sure(gamma: float) -> None:
    nats = tf.Variable([0.0, 100.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(losses_module.focal_losses(nats, gamma))
    np.testing.assert_allclose(tape.gradient(total, nats), [0.0, 1.0], atol=1e-3)
