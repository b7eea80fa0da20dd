"""Adam against the formula in float64."""

import numpy as np

from lingo.optim.adam import Adam
from lingo.optim.schedule import Cosine

SHAPE = (3, 4)


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


def test_beta_zero_remembers_nothing(run, gradients):
    params = Adam.params(learning_rate=0.1, beta1=0.0, beta2=0.0, epsilon=0.0)
    value, slots = run(params, np.zeros(SHAPE, np.float32), gradients(SHAPE, 2))
    np.testing.assert_allclose(slots["m"], gradients(SHAPE, 2)[-1], rtol=1e-5)
    assert np.isfinite(value).all()
