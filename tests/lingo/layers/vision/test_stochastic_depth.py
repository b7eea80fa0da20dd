"""Stochastic depth: whole examples, their scale, and the same ones however a batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import StochasticDepth
from lingo.layers.context import apply
from lingo.ops import random

NUM_EXAMPLES, RATE = 400, 0.2
X = np.random.default_rng(0).normal(size=[NUM_EXAMPLES, 2, 3, 4]).astype(np.float32)


def train(rows: Any, *, rate: float = RATE, step: int = 1) -> np.ndarray:
    layer = StochasticDepth.params(rate=rate).build()
    call = {"training": True, "key": random.root_key(step), "rows": tf.constant(rows, tf.int32)}
    return apply(layer, {}, tf.constant(X[rows]), call=call)[0].numpy()


def test_a_branch_is_zero_for_an_example_or_divided_by_its_probability_of_survival() -> None:
    y = train(range(NUM_EXAMPLES))
    survived = y.any((1, 2, 3))
    np.testing.assert_allclose(y[survived], X[survived] / (1 - RATE), rtol=1e-6)
    deviation = np.sqrt(RATE * (1 - RATE) / NUM_EXAMPLES)
    assert survived.mean() == pytest.approx(1 - RATE, abs=4 * deviation)


def test_micro_batches_drop_the_examples_that_the_whole_batch_drops() -> None:
    whole = train(range(12))
    parts = [train(rows) for rows in ([0, 1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_another_step_drops_other_examples() -> None:
    first, second = (train(range(40), step=step).any((1, 2, 3)) for step in (1, 2))
    assert (first != second).any()


def test_nothing_changes_outside_training_or_with_a_rate_of_zero() -> None:
    layer = StochasticDepth.params(rate=RATE).build()
    np.testing.assert_array_equal(apply(layer, {}, tf.constant(X))[0], X)
    np.testing.assert_array_equal(train(range(NUM_EXAMPLES), rate=0.0), X)
    assert layer.output_shape(X.shape) == X.shape
