"""Activation functions against their formulas."""

from __future__ import annotations

import math
import typing

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.activations import Activation, activate

FORMULAS = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "squared_relu": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("activation", typing.get_args(Activation))
def test_every_activation_equals_its_formula(activation: Activation) -> None:
    x = np.linspace(-3, 3, 13)
    expected = [FORMULAS[activation](v) for v in x]
    actual = activate(tf.constant(x, tf.float32), activation)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert activate(tf.zeros([2], tf.bfloat16), activation).dtype == tf.bfloat16
