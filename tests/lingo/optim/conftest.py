"""What tests of optimizers share: gradients, and runs of ours and of Keras'."""

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.optim.optimizer import Update, Weight


@pytest.fixture
def gradients():
    """Draws gradients, the same in every test."""

    def gradients(shape, count=20):
        draw = np.random.default_rng(0)
        return [draw.normal(size=shape).astype(np.float32) for _ in range(count)]

    return gradients


@pytest.fixture
def start():
    """Draws a weight, the same in every test."""
    return lambda shape: np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.fixture
def run():
    """Applies an optimizer step after step; returns the last value and slots."""

    def run(params, value, grads, weight=None):
        optimizer, weight = params.build(), weight or Weight("w", ("w",), value.shape)
        slots = {name: tf.fill(s.shape, s.fill) for name, s in optimizer.slots(weight).items()}
        new = tf.constant(value)
        for step, grad in enumerate(grads):
            at = tf.constant(step)
            rates = optimizer.rates(at)
            new, slots = optimizer.update(Update(weight, new, tf.constant(grad), slots, at, rates))
        return new.numpy(), {name: slot.numpy() for name, slot in slots.items()}

    return run


@pytest.fixture
def run_keras():
    """Applies a Keras optimizer step after step; returns the last value."""

    def run_keras(oracle, value, grads):
        variable = keras.Variable(value)
        for grad in grads:
            oracle.apply([grad], [variable])
        return variable.numpy()

    return run_keras
