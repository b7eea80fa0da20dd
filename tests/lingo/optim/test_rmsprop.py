"""The centered form of RMSProp; `test_conformance.py` compares all forms with Keras."""

import numpy as np

from lingo.optim.rmsprop import RmsProp


def test_a_constant_gradient_has_a_deviation_of_0_and_no_negative_one(run):
    grads = [np.full((3, 4), 1000 / 7, np.float32)] * 400
    params = RmsProp.params(learning_rate=1e-6, centered=True, rho=0.9)
    value, _ = run(params, np.zeros((3, 4), np.float32), grads)
    assert np.isfinite(value).all()
