"""Gradient descent against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.optimizer import Weight
from lingo.optim.schedule import LinearRate
from lingo.optim.sgd import Sgd

WEIGHT = Weight("w", ("w",), (5,))


def run(params, grads):
    optimizer = params.build()
    slots = {name: tf.fill(slot.shape, slot.fill) for name, slot in optimizer.slots(WEIGHT).items()}
    value = tf.ones([5])
    for step, grad in enumerate(grads):
        value, slots = optimizer.update(WEIGHT, value, tf.constant(grad), slots, tf.constant(step))
    return value.numpy()


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_equals_keras_over_20_steps(momentum, nesterov):
    draw = np.random.default_rng(0)
    grads = [draw.normal(size=5).astype(np.float32) for _ in range(20)]
    variable = keras.Variable(np.ones(5, np.float32))
    oracle = keras.optimizers.SGD(0.01, momentum=momentum, nesterov=nesterov)
    for grad in grads:
        oracle.apply([grad], [variable])
    ours = run(Sgd.params(learning_rate=0.01, momentum=momentum, nesterov=nesterov), grads)
    np.testing.assert_allclose(ours, variable.numpy(), atol=1e-6)


def test_a_lower_rate_takes_effect_at_once():
    params = Sgd.params(learning_rate=1.0, momentum=0.5, schedule=LinearRate.params(num_steps=1))
    ones = np.ones(5, np.float32)
    np.testing.assert_array_equal(run(params, [ones, ones, ones]), run(params, [ones]))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"momentum": 1.0}, "momentum=1.0"), ({"nesterov": True}, "needs a momentum")],
)
def test_values_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ParamError, match=message):
        Sgd.params(learning_rate=0.1, **options).build()
