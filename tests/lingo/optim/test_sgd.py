"""Gradient descent against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.schedule import LinearRate
from lingo.optim.sgd import Momentum, Sgd

ONES = np.ones(5, np.float32)


@pytest.mark.parametrize("accumulate", ["gradients", "updates"])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, False), (0.9, True)])
def test_equals_keras_over_20_steps(accumulate, momentum, nesterov, run, run_keras, gradients):
    options = {"momentum": momentum, "nesterov": nesterov}
    params = Sgd.params(learning_rate=0.01, accumulate=accumulate, **options)
    oracle = keras.optimizers.SGD(0.01, **options)
    ours, _ = run(params, ONES, gradients((5,)))
    np.testing.assert_allclose(ours, run_keras(oracle, ONES, gradients((5,))), atol=1e-6)


def test_without_momentum_equals_keras_and_keeps_nothing(run, run_keras, gradients):
    ours, slots = run(Sgd.params(learning_rate=0.01), ONES, gradients((5,)))
    oracle = keras.optimizers.SGD(0.01)
    np.testing.assert_allclose(ours, run_keras(oracle, ONES, gradients((5,))), atol=1e-6)
    assert slots == {}


def test_weight_decay_is_keras_over_20_steps(run, run_keras, start, gradients):
    params = Momentum.params(learning_rate=0.1, weight_decay=0.2)
    oracle = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.2)
    ours, _ = run(params, start((4, 3)), gradients((4, 3)))
    expected = run_keras(oracle, start((4, 3)), gradients((4, 3)))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_sum_of_updates_follows_a_schedule_as_keras_does(run, run_keras, gradients):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0)
    oracle = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    params = Momentum.params(
        learning_rate=0.1,
        schedule=LinearRate.params(num_steps=10),
        nesterov=True,
        accumulate="updates",
    )
    ours, _ = run(params, ONES, gradients((5,)))
    np.testing.assert_allclose(ours, run_keras(oracle, ONES, gradients((5,))), atol=1e-6)


def test_with_a_sum_of_gradients_a_lower_rate_takes_effect_at_once(run):
    params = Momentum.params(learning_rate=1.0, schedule=LinearRate.params(num_steps=1))
    np.testing.assert_array_equal(run(params, ONES, [ONES] * 3)[0], run(params, ONES, [ONES])[0])
    params.accumulate = "updates"
    assert (run(params, ONES, [ONES] * 2)[0] < run(params, ONES, [ONES])[0]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"nesterov": True}, "nesterov=True needs a momentum"),
        ({"accumulate": "updates"}, "accumulate='updates' needs a momentum"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ParamError, match=message):
        Sgd.params(learning_rate=0.1, **options).build()
