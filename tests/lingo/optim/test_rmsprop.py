"""RMSProp of TensorFlow 1, and the centered form; `test_conformance.py` compares with Keras."""

import numpy as np
import pytest

from lingo.optim.rmsprop import RmsProp


def test_a_constant_gradient_has_a_deviation_of_0_and_no_negative_one(run):
    grads = [np.full((3, 4), 1000 / 7, np.float32)] * 400
    params = RmsProp.params(learning_rate=1e-6, centered=True, rho=0.9)
    value, _ = run(params, np.zeros((3, 4), np.float32), grads)
    assert np.isfinite(value).all()


@pytest.mark.parametrize("centered", [False, True])
def test_a_mean_square_that_starts_at_1_is_that_of_tensorflow_1(run, start, gradients, centered):
    params = RmsProp.params(
        learning_rate=0.1, momentum=0.9, epsilon=1e-3, centered=centered, initial_mean_square=1.0
    )
    value, grads = start((3, 4)), gradients((3, 4), 5)
    expected = value.astype(np.float64)
    mean, square, moved = np.zeros((3, 4)), np.ones((3, 4)), np.zeros((3, 4))
    for grad in grads:
        square = 0.9 * square + 0.1 * grad**2
        mean = 0.9 * mean + 0.1 * grad * centered
        moved = 0.9 * moved + 0.1 * grad / np.sqrt(square - mean**2 + 1e-3)
        expected = expected - moved
    np.testing.assert_allclose(run(params, value, grads)[0], expected, rtol=1e-5, atol=1e-6)
