"""Adafactor against Keras where that has it, and against the paper in slow NumPy elsewhere."""

import keras
import numpy as np
import pytest

from lingo.optim.adafactor import Adafactor
from lingo.optim.optimizer import Weight
from lingo.optim.schedule import LinearRate

SHAPES = [(), (5,), (4, 3), (1, 6), (2, 4, 3)]


def paper(value, grads, *, rate, relative, scale, threshold, beta1):
    """Algorithms 4 and 5 for one matrix, with sums of rows and columns as written there."""
    value, rows, columns, mean = value.astype(np.float64), 0.0, 0.0, 0.0
    for t, grad in enumerate(grads, start=1):
        beta2 = 1 - t**-0.8
        square = grad.astype(np.float64) ** 2 + 1e-30
        rows = beta2 * rows + (1 - beta2) * square.sum(1)
        columns = beta2 * columns + (1 - beta2) * square.sum(0)
        update = grad / np.sqrt(np.outer(rows, columns) / rows.sum())
        if threshold is not None:
            update /= max(1.0, np.sqrt(np.mean(update**2)) / threshold)
        size = min(rate, t**-0.5) if relative else rate
        size *= max(1e-3, np.sqrt(np.mean(value**2))) if scale else 1.0
        mean = beta1 * mean + (1 - beta1) * size * update
        value = value - mean
    return value


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_equals_keras_over_20_steps(shape, rate, run, run_keras, start, gradients):
    ours, _ = run(Adafactor.params(learning_rate=rate), start(shape), gradients(shape))
    oracle = keras.optimizers.Adafactor(rate)
    expected = run_keras(oracle, start(shape), gradients(shape))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_equals_keras_with_every_option_it_has(run, run_keras, start, gradients):
    params = Adafactor.params(
        learning_rate=0.2,
        beta2_decay=0.5,
        epsilon1=1e-6,
        epsilon2=0.1,
        clip_threshold=0.5,
        weight_decay=0.1,
        min_decay_rank=0,
    )
    oracle = keras.optimizers.Adafactor(
        0.2, beta_2_decay=-0.5, epsilon_1=1e-6, epsilon_2=0.1, clip_threshold=0.5, weight_decay=0.1
    )
    for shape in [(5,), (4, 3)]:
        ours, _ = run(params, start(shape), gradients(shape))
        expected = run_keras(oracle, start(shape), gradients(shape))
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        oracle = keras.optimizers.Adafactor.from_config(oracle.get_config())


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("threshold", "beta1"), [(None, 0.0), (0.5, 0.9)])
def test_equals_the_paper(relative, scale, threshold, beta1, run, start, gradients):
    options = {"clip_threshold": threshold, "beta1": beta1, "relative_step": relative}
    params = Adafactor.params(learning_rate=0.3, multiply_by_parameter_scale=scale, **options)
    ours, _ = run(params, start((4, 3)), gradients((4, 3)))
    flags = {"relative": relative, "scale": scale, "threshold": threshold, "beta1": beta1}
    expected = paper(start((4, 3)), gradients((4, 3)), rate=0.3, **flags)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_a_matrix_keeps_a_row_and_a_column_and_a_vector_all():
    optimizer = Adafactor.params(learning_rate=0.1).build()
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 7, 4, 3), 1)
    shapes = {name: slot.shape for name, slot in optimizer.slots(stack).items()}
    assert shapes == {"v_row": (2, 7, 4), "v_column": (2, 7, 3)}
    vectors = stack._replace(shape=(2, 3))
    assert {n: s.shape for n, s in optimizer.slots(vectors).items()} == {"v": (2, 3)}


def test_a_relative_step_follows_a_schedule_below_its_own_fall(run, start, gradients):
    rising = LinearRate.params(num_steps=4, start=0.0, end=1.0)
    params = Adafactor.params(learning_rate=1.0, schedule=rising)
    value = start((4, 3))
    np.testing.assert_array_equal(run(params, value, gradients((4, 3), 1))[0], value)
