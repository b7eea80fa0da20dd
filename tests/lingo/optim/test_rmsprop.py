"""RMSProp against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.rmsprop import RmsProp
from lingo.optim.schedule import Exponential

SHAPE = (3, 4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_equals_keras_over_20_steps(momentum, centered, run, run_keras, start, gradients):
    options = {"rho": 0.8, "momentum": momentum, "centered": centered, "epsilon": 1e-3}
    params = RmsProp.params(learning_rate=0.01, **options)
    ours, slots = run(params, start(SHAPE), gradients(SHAPE))
    oracle = keras.optimizers.RMSprop(0.01, **options)
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=2e-6)
    assert len(slots) == 1 + (momentum > 0) + centered


def test_equals_keras_under_a_schedule(run, run_keras, start, gradients):
    params = RmsProp.params(
        learning_rate=0.01,
        momentum=0.9,
        schedule=Exponential.params(num_steps=3, decay_rate=0.5, staircase=True),
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5, staircase=True)
    oracle = keras.optimizers.RMSprop(schedule, momentum=0.9)
    ours, _ = run(params, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=1e-6)


def test_a_constant_gradient_has_a_deviation_of_0_and_no_negative_one(run):
    grads = [np.full(SHAPE, 1000 / 7, np.float32)] * 400
    params = RmsProp.params(learning_rate=1e-6, centered=True, rho=0.9)
    value, _ = run(params, np.zeros(SHAPE, np.float32), grads)
    assert np.isfinite(value).all()


@pytest.mark.parametrize(("field", "value"), [("rho", 1.0), ("momentum", -0.5), ("epsilon", -1.0)])
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ParamError, match=f"{field}={value}"):
        RmsProp.params(learning_rate=0.1, **{field: value}).build()
