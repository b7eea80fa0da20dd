"""Losses against slow NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.lazy import tf
from lingo.ops.losses import cross_entropy


def test_cross_entropy_equals_minus_log_softmax() -> None:
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=[2, 3, 5]), rng.integers(0, 5, [2, 3])
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(probabilities, targets[..., None], -1)[..., 0])
    actual = cross_entropy(tf.constant(logits, tf.float32), tf.constant(targets, tf.int32))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_even_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    np.testing.assert_allclose(cross_entropy(tf.zeros([1, 1, 256]), [[3]]), [[np.log(256)]])


def test_large_logits_do_not_overflow() -> None:
    logits = tf.constant([[[1e30, 0.0], [1000.0, 1001.0]]])
    expected = [[0.0, np.log1p(np.exp(-1.0))]]
    np.testing.assert_allclose(cross_entropy(logits, [[0, 1]]), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_loss_is_float32_whatever_the_logits_are(dtype: str) -> None:
    assert cross_entropy(tf.zeros([1, 2, 3], dtype), [[0, 1]]).dtype == tf.float32
