"""What a choice is made by: the nucleus, a draw, log-probabilities."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.decode.choice import draw, log_prob, nucleus

LOGITS = np.log(np.array([[0.1, 0.4, 0.2, 0.3], [0.5, 0.25, 0.15, 0.1]], np.float32))
LAST = np.float32(1 - 2**-24)  # the largest number that is drawn


def test_the_nucleus_has_the_token_that_reaches_the_probability() -> None:
    ordered = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    for top_p, size in ((0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (1.0, 4)):
        assert np.isfinite(nucleus(tf.constant(ordered), top_p)).sum() == size


def test_what_is_impossible_is_never_drawn() -> None:
    logits = tf.constant([[-np.inf, 0.0, -np.inf, 1.0, -np.inf]] * 3, tf.float32)
    assert draw(logits, tf.constant([0.0, 0.5, LAST])).numpy().tolist() == [1, 3, 3]


def test_the_largest_number_stays_below_the_sum_of_many_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=[50, 1000]).astype(np.float32)
    chosen = draw(tf.constant(logits), np.full(50, LAST)).numpy()
    assert chosen.max() < 1000


def test_log_probabilities_are_those_of_the_model() -> None:
    expected = np.log([0.4, 0.1])
    np.testing.assert_allclose(log_prob(tf.constant(LOGITS), [1, 3]), expected, rtol=1e-5)
