"""Group normalization, against Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import GroupNorm, Layer
from lingo.layers.context import apply
from lingo.learner.state import initial_value

X = 3 + 2 * np.random.default_rng(0).normal(size=[3, 4, 5, 6]).astype(np.float32)


def group_norm(**fields: Any) -> Layer:
    return GroupNorm.params(dim=6, **fields).build()


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("x", [X, X[:, 0]], ids=["image", "sequence"])
def test_equals_that_of_keras_with_its_gradients(num_groups: int, x: Any, draw) -> None:
    layer = group_norm(num_groups=num_groups, epsilon=1e-3)
    weights, x = draw(layer), tf.constant(x)
    oracle: Any = keras.layers.GroupNormalization(num_groups, epsilon=1e-3)
    oracle.build(x.shape)
    oracle.set_weights([weights["gamma"], weights["beta"]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, *weights.values()])
        y, expected = apply(layer, weights, x)[0], oracle(x)
        ours, theirs = tf.reduce_sum(tf.sin(y)), tf.reduce_sum(tf.sin(expected))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    for a, b in (
        (x, x),
        (weights["gamma"], oracle.gamma.value),
        (weights["beta"], oracle.beta.value),
    ):
        gradient = tape.gradient(theirs, b)
        np.testing.assert_allclose(tape.gradient(ours, a), gradient, rtol=1e-3, atol=1e-4)


def test_an_example_is_normalized_as_if_it_were_alone_in_training_too(draw) -> None:
    layer = group_norm(num_groups=3)
    weights = draw(layer)
    y = apply(layer, weights, X, call={"training": True})[0]
    for i in range(len(X)):
        np.testing.assert_allclose(y[i : i + 1], apply(layer, weights, X[i : i + 1])[0], rtol=1e-5)


def test_statistics_are_float32_while_the_result_is_bfloat16(draw) -> None:
    layer, plain = group_norm(num_groups=2, dtype="bfloat16"), group_norm(num_groups=2)
    weights, x = draw(layer), tf.cast(1000 + X, tf.bfloat16)
    y, expected = apply(layer, weights, x)[0], apply(plain, weights, x)[0]
    assert y.dtype == tf.bfloat16
    np.testing.assert_array_equal(y, tf.cast(expected, tf.bfloat16))


@pytest.mark.parametrize(("zero_init", "start"), [(False, 1.0), (True, 0.0)])
def test_gamma_can_start_at_zero(zero_init: bool, start: float) -> None:
    spec = group_norm(num_groups=2, zero_init=zero_init).weights()["gamma"]
    np.testing.assert_array_equal(initial_value(spec, 0), np.full(6, start))
