"""Lookups equal indexing; rows that are looked up twice add their gradients."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.ops.lookup import lookup


def test_values_and_gradient_equal_indexing() -> None:
    table = tf.constant(np.random.RandomState(0).randn(5, 2).astype("f"))
    ids = tf.constant([[3, 1], [3, 0]])
    weights = tf.constant(np.random.RandomState(1).randn(2, 2, 2).astype("f"))
    with tf.GradientTape() as tape:
        tape.watch(table)
        rows = lookup(table, ids)
        loss = tf.reduce_sum(rows * weights)
    np.testing.assert_array_equal(rows, table.numpy()[ids.numpy()])
    expected = np.zeros([5, 2], "f")
    np.add.at(expected, ids.numpy(), weights.numpy())
    np.testing.assert_allclose(tape.gradient(loss, table), expected, rtol=1e-6)
