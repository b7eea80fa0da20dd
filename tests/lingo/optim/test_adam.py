"""Adam against Keras, against the formula in float64, and on stacked weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.adam import Adam, AdamW
from lingo.optim.optimizer import Weight
from lingo.optim.schedule import Cosine

SHAPE = (3, 4)
WEIGHT = Weight("w", ("w",), SHAPE)


def gradients(shape, count=20):
    draw = np.random.default_rng(0)
    return [draw.normal(size=shape).astype(np.float32) for _ in range(count)]


def start(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def run(params, weight, value, grads):
    """Applies an optimizer step after step; returns the last value and slots."""
    optimizer = params.build()
    slots = {name: tf.fill(slot.shape, slot.fill) for name, slot in optimizer.slots(weight).items()}
    value = tf.constant(value)
    for step, grad in enumerate(grads):
        value, slots = optimizer.update(weight, value, tf.constant(grad), slots, tf.constant(step))
    return value.numpy(), {k: v.numpy() for k, v in slots.items()}


def test_equals_keras_adamw_over_20_steps():
    variable = keras.Variable(start(SHAPE))
    oracle = keras.optimizers.AdamW(0.01, beta_2=0.99, weight_decay=0.1, epsilon=1e-6)
    for grad in gradients(SHAPE):
        oracle.apply([grad], [variable])
    ours, _ = run(
        AdamW.params(learning_rate=0.01, beta2=0.99, weight_decay=0.1, epsilon=1e-6),
        WEIGHT,
        start(SHAPE),
        gradients(SHAPE),
    )
    np.testing.assert_allclose(ours, variable.numpy(), atol=1e-6)


def test_equals_the_formula_in_float64():
    value, m, v = start(SHAPE).astype(np.float64), 0.0, 0.0
    for t, grad in enumerate(gradients(SHAPE), start=1):
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * np.square(grad.astype(np.float64))
        rate = 0.01 * (1 + np.cos(np.pi * (t - 1) / 15)) / 2 if t <= 15 else 0.0
        size = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        value = value - rate * 0.2 * value - size * m / (np.sqrt(v) + 1e-3)
    params = Adam.params(
        learning_rate=0.01, schedule=Cosine.params(num_steps=15), weight_decay=0.2, epsilon=1e-3
    )
    ours, slots = run(params, WEIGHT, start(SHAPE), gradients(SHAPE))
    np.testing.assert_allclose(ours, value, atol=1e-6)
    np.testing.assert_allclose(slots["v"], v, rtol=1e-5)


def test_the_first_step_has_the_size_of_the_learning_rate():
    value, _ = run(
        Adam.params(learning_rate=0.01), WEIGHT, np.zeros(SHAPE, np.float32), gradients(SHAPE, 1)
    )
    np.testing.assert_allclose(np.abs(value), 0.01, rtol=1e-4)


@pytest.mark.parametrize("rank", [1, 2])
def test_stacked_weights_train_as_separate_ones(rank):
    one = (4, 3)[:rank]
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, *one), 1)
    params = AdamW.params(learning_rate=0.01, weight_decay=0.5, no_decay=["l/1/w"])
    grads, value = gradients((2, *one), 3), start((2, *one))
    together, _ = run(params, stack, value, grads)
    for i in range(2):
        alone = Weight(f"l/{i}/w", (f"l/{i}/w",), one)
        expected, _ = run(params, alone, value[i], [g[i] for g in grads])
        np.testing.assert_array_equal(together[i], expected)


@pytest.mark.parametrize(
    ("weight", "options", "decays"),
    [
        (Weight("w", ("w",), (2, 2)), {}, True),
        (Weight("b", ("b",), (4,)), {}, False),
        (Weight("l/[0:2]/b", ("l/0/b", "l/1/b"), (2, 2), 1), {}, False),
        (Weight("b", ("b",), (4,)), {"min_decay_rank": 1}, True),
        (Weight("w", ("w",), (2, 2)), {"no_decay": ["w|v"]}, False),
        (Weight("w2", ("w2",), (2, 2)), {"no_decay": ["w"]}, True),
    ],
)
def test_what_decays(weight, options, decays):
    value = np.ones(weight.shape, np.float32)
    params = Adam.params(learning_rate=0.5, weight_decay=0.5, **options)
    after, _ = run(params, weight, value, [np.zeros(weight.shape, np.float32)])
    np.testing.assert_array_equal(after, np.full_like(value, 0.75 if decays else 1.0))


def test_beta_zero_remembers_nothing():
    value, slots = run(
        Adam.params(learning_rate=0.1, beta1=0.0, beta2=0.0, epsilon=0.0),
        WEIGHT,
        np.zeros(SHAPE, np.float32),
        gradients(SHAPE, 2),
    )
    last = gradients(SHAPE, 2)[-1]
    np.testing.assert_allclose(slots["m"], last, rtol=1e-5)
    assert np.isfinite(value).all()


def test_compiled_by_xla_it_is_the_same():
    optimizer = AdamW.params(learning_rate=0.01).build()
    zeros = {"m": tf.zeros(SHAPE), "v": tf.zeros(SHAPE)}
    value, grad = tf.constant(start(SHAPE)), tf.constant(gradients(SHAPE, 1)[0])

    @tf.function(jit_compile=True, autograph=False)
    def compiled(value, grad, slots, step):
        return optimizer.update(WEIGHT, value, grad, slots, step)

    eager = optimizer.update(WEIGHT, value, grad, zeros, tf.constant(0))
    np.testing.assert_allclose(
        compiled(value, grad, zeros, tf.constant(0)).value, eager.value, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta1": 1.0}, "beta1=1.0"),
        ({"beta2": -0.5}, "beta2=-0.5"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"no_decay": ["("]}, "is no regular expression"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ParamError, match=message):
        Adam.params(learning_rate=0.1, **options).build()


def test_a_no_decay_pattern_that_matches_nothing_is_refused():
    optimizer = Adam.params(learning_rate=0.1, no_decay=["bias"]).build()
    with pytest.raises(ParamError, match="'bias' matches none of 1 weights"):
        optimizer.check_weights([Weight("ffn/bias", ("ffn/bias",), (2,))])
