"""Lion against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.lion import Lion

SHAPE = (3, 4)


def test_equals_keras_over_20_steps(run, run_keras, start, gradients):
    params = Lion.params(learning_rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.5)
    oracle = keras.optimizers.Lion(0.01, beta_1=0.8, beta_2=0.95, weight_decay=0.5)
    ours, _ = run(params, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, run_keras(oracle, start(SHAPE), gradients(SHAPE)), atol=1e-6)


def test_every_element_moves_by_the_learning_rate_whatever_the_scale(run, gradients):
    zeros = np.zeros(SHAPE, np.float32)
    (grad,) = gradients(SHAPE, 1)
    for scale in (1e-6, 1e6):
        value, _ = run(Lion.params(learning_rate=0.01), zeros, [scale * grad])
        np.testing.assert_allclose(value, -0.01 * np.sign(grad), rtol=1e-6)


@pytest.mark.parametrize("field", ["beta1", "beta2"])
def test_values_out_of_range_are_refused(field):
    with pytest.raises(ParamError, match=f"{field}=1.0"):
        Lion.params(learning_rate=0.1, **{field: 1.0}).build()
