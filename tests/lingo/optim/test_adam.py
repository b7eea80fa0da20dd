"""Adam against Keras, and against the formula in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.adam import Adam, AdamW
from lingo.optim.schedule import Cosine

SHAPE = (3, 4)


def test_equals_keras_adam_over_20_steps(run, run_keras, start, gradients):
    ours, _ = run(Adam.params(learning_rate=0.01), start(SHAPE), gradients(SHAPE))
    oracle = keras.optimizers.Adam(0.01)
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=1e-6)


def test_equals_keras_adamw_over_20_steps(run, run_keras, start, gradients):
    params = AdamW.params(learning_rate=0.01, beta2=0.99, weight_decay=0.1, epsilon=1e-6)
    oracle = keras.optimizers.AdamW(0.01, beta_2=0.99, weight_decay=0.1, epsilon=1e-6)
    ours, _ = run(params, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=1e-6)


def test_equals_the_formula_in_float64(run, start, gradients):
    value, m, v = start(SHAPE).astype(np.float64), 0.0, 0.0
    for t, grad in enumerate(gradients(SHAPE), start=1):
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * np.square(grad.astype(np.float64))
        rate = 0.01 * (1 + np.cos(np.pi * (t - 1) / 15)) / 2 if t <= 15 else 0.0
        size = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        value = value - rate * 0.2 * value - size * m / (np.sqrt(v) + 1e-3)
    params = Adam.params(
        learning_rate=0.01, schedule=Cosine.params(num_steps=15), weight_decay=0.2, epsilon=1e-3
    )
    ours, slots = run(params, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, value, atol=1e-6)
    np.testing.assert_allclose(slots["v"], v, rtol=1e-5)


def test_the_first_step_has_the_size_of_the_learning_rate(run, gradients):
    zeros = np.zeros(SHAPE, np.float32)
    value, _ = run(Adam.params(learning_rate=0.01), zeros, gradients(SHAPE, 1))
    np.testing.assert_allclose(np.abs(value), 0.01, rtol=1e-4)


def test_beta_zero_remembers_nothing(run, gradients):
    params = Adam.params(learning_rate=0.1, beta1=0.0, beta2=0.0, epsilon=0.0)
    value, slots = run(params, np.zeros(SHAPE, np.float32), gradients(SHAPE, 2))
    np.testing.assert_allclose(slots["m"], gradients(SHAPE, 2)[-1], rtol=1e-5)
    assert np.isfinite(value).all()


@pytest.mark.parametrize(("field", "value"), [("beta1", 1.0), ("beta2", -0.5), ("epsilon", -1.0)])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ParamError, match=f"{field}={value}"):
        Adam.params(learning_rate=0.1, **{field: value}).build()
