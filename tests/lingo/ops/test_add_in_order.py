"""Sums do not depend on which operation is done first."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.ops.add_in_order import add_in_order


def step(x, *, users_first: bool):
    """Returns a sum of three terms of which two have another use, done before or after it."""
    a, b, c = tf.sin(x[0]), tf.sin(x[1]), tf.sin(x[2])

    def use():
        return [tf.reduce_sum(a), tf.reduce_sum(b)]

    if users_first:
        used = use()
        with tf.control_dependencies(used):
            return tf.add_n([a, b, c]), used
    total = tf.add_n([a, b, c])
    with tf.control_dependencies([total]):
        return total, use()


def compute(*, users_first: bool):
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 64, 64)), tf.float32)
    return tf.function(lambda: step(x, users_first=users_first))()[0].numpy()


def test_terms_are_added_in_one_order_whatever_is_done_first():
    with add_in_order():
        first, last = compute(users_first=True), compute(users_first=False)
    assert first.tobytes() == last.tobytes()


def test_gradients_are_added_without_add_n():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.add_n([tf.sin(x), tf.cos(x), tf.exp(x)])
        return tape.gradient(y, x)

    with add_in_order():
        graph = tf.function(gradient).get_concrete_function(tf.TensorSpec([3])).graph
    assert "AddN" not in {op.type for op in graph.get_operations()}


def test_tensorflow_is_as_before_outside():
    before = tf.function(lambda x: tf.add_n([x, x, x]))
    with pytest.raises(ZeroDivisionError), add_in_order():
        raise ZeroDivisionError
    graph = before.get_concrete_function(tf.TensorSpec([3])).graph
    assert "AddN" in {op.type for op in graph.get_operations()}
