"""Shampoo against its algorithm in float64 NumPy."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.optim.adam import Adam
from lingo.optim.optimizer import Update, Weight
from lingo.optim.shampoo import Shampoo, inverse_root


def root(x, exponent, ridge=1e-6):
    values, vectors = np.linalg.eigh(x)
    return (vectors * np.maximum(values, ridge * values[-1]) ** exponent) @ vectors.T


def directions(grads, decay=1.0):
    """Yields left^-1/4 G right^-1/4 for each gradient: Gupta et al. 2018, algorithm 1."""
    left = right = 0.0
    for grad in np.float64(grads):
        part = 1.0 if decay == 1 else 1 - decay
        left = decay * left + part * grad @ grad.T
        right = decay * right + part * grad.T @ grad
        yield root(left, -1 / 4) @ grad @ root(right, -1 / 4)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_equals_the_papers_algorithm_over_20_steps(decay, run, start, gradients):
    params = Shampoo.params(
        learning_rate=0.1, weight_decay=0.0, beta1=0.0, graft=False, statistics_decay=decay
    )
    value, grads = start((4, 4)), gradients((4, 4))
    ours, slots = run(params, value, grads)
    expected = value - 0.1 * sum(directions(grads, decay))
    np.testing.assert_allclose(ours, expected, atol=2e-3)  # 1/4 powers of float32 sums
    assert slots.keys() == {"m", "left", "left_root", "right", "right_root"}


def test_one_side_is_too_long(run, start, gradients):
    """Then the other side's exponent is -1/2, which is full-matrix Adagrad of the columns."""
    params = Shampoo.params(
        learning_rate=0.1, weight_decay=0.0, beta1=0.0, graft=False, statistics_decay=1, max_dim=3
    )
    value, grads = start((3, 5)), gradients((3, 5), 4)
    ours, slots = run(params, value, grads)
    left, expected = 0.0, np.float64(value)
    for grad in np.float64(grads):
        left = left + grad @ grad.T
        expected = expected - 0.1 * root(left, -1 / 2) @ grad
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert slots.keys() == {"m", "left", "left_root"}


def test_two_long_sides_move_by_adam(run, start, gradients):
    value, grads = start((4, 3)), gradients((4, 3), 3)
    params = Shampoo.params(learning_rate=0.1, weight_decay=0.0, max_dim=2)
    expected, _ = run(Adam.params(learning_rate=0.1), value, grads)
    np.testing.assert_array_equal(run(params, value, grads)[0], expected)


def test_a_grafted_step_has_the_length_of_adams_and_shampoos_direction(run, gradients):
    zeros, grads = np.zeros((4, 3), np.float32), gradients((4, 3), 1)
    params = Shampoo.params(learning_rate=0.1, weight_decay=0.0, beta1=0.0)
    step, _ = run(params, zeros, grads)
    adam, _ = run(Adam.params(learning_rate=0.1, beta1=0.0), zeros, grads)
    (direction,) = directions(grads)
    expected = -direction * np.linalg.norm(adam) / np.linalg.norm(direction)
    np.testing.assert_allclose(step, expected, atol=1e-4)


def test_roots_are_computed_when_due(run, start, gradients):
    params = Shampoo.params(learning_rate=0.1, root_steps=3)
    grads = gradients((4, 3), 4)
    roots = [run(params, start((4, 3)), grads[:n])[1]["left_root"] for n in (1, 2, 3, 4)]
    np.testing.assert_array_equal(roots[0], roots[2])
    assert np.abs(roots[3] - roots[2]).max() > 1e-3


def test_a_gradient_of_zeros_moves_nothing(run, start):
    value = start((4, 3))
    params = Shampoo.params(learning_rate=0.1, weight_decay=0.0)
    np.testing.assert_array_equal(run(params, value, [np.zeros_like(value)])[0], value)


def test_slots_of_sides_are_split_along_stacked_axes_only():
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 4, 3), 1)
    slots = Shampoo.params(learning_rate=0.1).build().slots(stack)
    assert slots["left"].shape == (2, 4, 4)
    assert slots["right_root"].axes == (0, None, None)


def test_inverse_roots_of_a_batch():
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    x = x @ np.swapaxes(x, 1, 2)
    y = inverse_root(tf.constant(x, tf.float32), 4, 1e-6).numpy()
    for one, ours in zip(x, y, strict=True):
        np.testing.assert_allclose(ours @ ours @ ours @ ours @ one, np.eye(5), atol=1e-3)


def test_a_gradient_that_is_not_finite_raises_nothing(run, start):
    """The training step finds it, and skips the update."""
    params = Shampoo.params(learning_rate=0.1)
    _, slots = run(params, start((4, 3)), [np.full((4, 3), np.inf, np.float32)])
    assert not np.isfinite(slots["left"]).any()


def test_roots_are_computed_at_the_first_step_that_is_not_skipped(start, gradients):
    optimizer = Shampoo.params(learning_rate=0.1, root_steps=20).build()
    weight, value = Weight("w", ("w",), (4, 3)), tf.constant(start((4, 3)))
    slots = {k: tf.fill(slot.shape, slot.fill) for k, slot in optimizer.slots(weight).items()}
    step, gradient = tf.constant(1), tf.constant(gradients((4, 3), 1)[0])
    after = optimizer.update(Update(weight, value, gradient, slots, step, optimizer.rates(step)))
    assert np.abs(after.slots["left_root"]).max() > 0
