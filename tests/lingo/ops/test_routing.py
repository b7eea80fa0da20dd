"""Places, balance and z-loss, against loops over tokens."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.ops import routing

G, S, K, E = 3, 7, 2, 4
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=[G, S, E]).astype("f")
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
EXPERT = np.argsort(-PROBABILITIES, -1)[..., :K].astype("i")
COUNTED = RNG.random([G, S, K]) < 0.8
VALID = np.array([[True] * S, [True] * 4 + [False] * 3, [False] * S])


def test_groups_are_runs_of_tokens_row_after_row() -> None:
    x = tf.constant(np.arange(12).reshape(2, 6))
    for size in (3, 12):
        wanted = np.arange(12).reshape(-1, size)
        np.testing.assert_array_equal(routing.group_tokens(x, size), wanted)


def test_of_equal_probabilities_the_first_expert_leads_and_none_comes_twice() -> None:
    found = routing.most_probable(tf.constant([[[0.0, 1.0, 0.0, 0.0]]]), 4)
    np.testing.assert_array_equal(found, [[[1, 0, 2, 3]]])


def test_gates_are_the_probabilities_and_the_gradient_goes_to_them_alone() -> None:
    probabilities = tf.constant(PROBABILITIES)
    with tf.GradientTape() as tape:
        tape.watch(probabilities)
        gates = routing.gates_of(probabilities, tf.constant(EXPERT))
    np.testing.assert_array_equal(gates, np.take_along_axis(PROBABILITIES, EXPERT, -1))
    chosen = np.zeros([G, S, E])
    np.put_along_axis(chosen, EXPERT, 1.0, -1)
    np.testing.assert_array_equal(tape.gradient(gates, probabilities), chosen)


def test_places_are_exact_where_float16_would_not_be() -> None:
    expert = np.zeros([1, 3000, 1], "i")
    found = routing.positions_in_expert(
        tf.constant(expert), tf.ones([1, 3000, 1], tf.bool), num_experts=2
    )
    np.testing.assert_array_equal(found[0, :, 0], np.arange(3000))


def test_of_equal_scores_experts_take_the_first_tokens_and_never_too_many() -> None:
    scores = np.array([[[0.2], [0.5], [0.2], [0.9], [0.2]]], "f")
    slot = routing.best_tokens(tf.constant(scores), tf.ones([1, 5], tf.bool), capacity=4)
    np.testing.assert_array_equal(slot[0, :, 0], [0, 1, 2, 3, -1])


def test_the_balance_loss_pulls_probability_away_from_the_expert_that_all_choose() -> None:
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        first = tf.zeros([G, S], tf.int32)
        loss = routing.balance_loss(first, tf.nn.softmax(logits), tf.ones([G, S], tf.bool))
    gradient = tape.gradient(loss, logits).numpy()
    assert (gradient[..., 0] > 0).all()
    assert (gradient[..., 1:] < 0).all()


def test_z_loss_of_the_published_example() -> None:
    logits = [[2, 1, 0], [3, 0.5, 0], [2.5, 0, 1], [0, 2, 1], [1, 0, 2], [1.5, 1, 0.5]]
    loss = routing.z_loss(tf.constant([logits], tf.float32), tf.ones([1, 6], tf.bool))
    np.testing.assert_allclose(loss, [6.592441], atol=1e-5)


def test_z_loss_is_the_mean_over_valid_tokens_and_finite_for_large_logits() -> None:
    found = routing.z_loss(tf.constant(LOGITS), tf.constant(VALID))
    square = np.log(np.exp(LOGITS).sum(-1)) ** 2
    np.testing.assert_allclose(found[:2], [square[0].mean(), square[1, :4].mean()], rtol=1e-5)
    assert np.isfinite(routing.z_loss(tf.constant(1e4 * LOGITS), tf.constant(VALID))).all()


def test_a_group_of_padding_has_losses_and_gradients_of_zero() -> None:
    logits = tf.constant(LOGITS)
    valid = tf.constant(VALID)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        z, probabilities = routing.z_loss(logits, valid), tf.nn.softmax(logits)
        balance = routing.balance_loss(tf.constant(EXPERT[..., 0]), probabilities, valid)
        total = tf.reduce_sum(z) + tf.reduce_sum(balance)
    assert (z[2], balance[2]) == (0.0, 0.0)
    gradient = tape.gradient(total, logits).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[~VALID].any()


def test_entropy_is_log_e_at_most_and_zero_for_the_certain() -> None:
    logits = tf.constant([[0.0, 0.0, 0.0, 0.0], [1e4, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(routing.entropy(logits), [np.log(4), 0.0], rtol=1e-6)
    wanted = -(PROBABILITIES * np.log(PROBABILITIES)).sum(-1)
    np.testing.assert_allclose(routing.entropy(tf.constant(LOGITS)), wanted, rtol=1e-5)
