"""Muon's step against singular values computed by NumPy; Keras's are in test_conformance.py."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.optim.muon import Muon, equalize_singular_values
from lingo.optim.optimizer import Weight


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (3, 8, 5)], ids=str)
def test_singular_values_become_equal_and_vectors_stay(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = equalize_singular_values(tf.constant(x), 5).numpy()
    u, s, v = np.linalg.svd(x, full_matrices=False)
    assert (s[..., -1] / np.linalg.norm(x, axis=(-2, -1)) > 1 / 330).all()
    values = np.einsum("...ri,...rc,...ic->...i", u, y, v)  # of y, along the vectors of x
    assert 0.68 < values.min() < values.max() < 1.21
    np.testing.assert_allclose((u * values[..., None, :]) @ v, y, atol=2e-5)


def test_a_gradient_of_zeros_moves_nothing(run, start):
    value = start((4, 3))
    after, _ = run(Muon.params(learning_rate=0.1, weight_decay=0.0), value, [np.zeros_like(value)])
    np.testing.assert_array_equal(after, value)


@pytest.mark.parametrize("shape", [(64, 64), (32, 128), (4, 16, 64)], ids=str)
def test_a_step_has_about_the_size_of_adams(shape, run, gradients):
    weight = Weight("w", ("w",), shape, fan_in=64 if len(shape) == 3 else None)
    params = Muon.params(learning_rate=1.0, weight_decay=0.0)
    step, _ = run(params, np.zeros(shape, np.float32), gradients(shape, 1), weight)
    size = np.sqrt(np.mean(np.square(step)))
    assert 0.2 * 0.68 < size < 0.2 * 1.21  # Liu et al. 2025: AdamW's are 0.2 to 0.4
