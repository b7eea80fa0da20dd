"""Adagrad against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.adagrad import Adagrad

SHAPE = (3, 4)


@pytest.mark.parametrize("initial", [0.0, 0.1])
def test_equals_keras_over_20_steps(initial, run, run_keras, start, gradients):
    params = Adagrad.params(learning_rate=0.1, initial_accumulator_value=initial)
    oracle = keras.optimizers.Adagrad(0.1, initial_accumulator_value=initial)
    ours, _ = run(params, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=1e-6)


def test_steps_fall_with_the_root_of_their_number(run):
    ones = [np.ones(SHAPE, np.float32)] * 4
    params = Adagrad.params(learning_rate=1.0, initial_accumulator_value=0.0, epsilon=0.0)
    value, slots = run(params, np.zeros(SHAPE, np.float32), ones)
    np.testing.assert_allclose(value, -sum(t**-0.5 for t in range(1, 5)), rtol=1e-6)
    np.testing.assert_array_equal(slots["accumulator"], np.full(SHAPE, 4.0))


@pytest.mark.parametrize("field", ["initial_accumulator_value", "epsilon"])
def test_values_out_of_range_are_refused(field):
    with pytest.raises(ParamError, match=f"{field}=-1.0 is negative"):
        Adagrad.params(learning_rate=0.1, **{field: -1.0}).build()
