"""Dropout in layers, and of whole examples: the same ones however a batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import StochasticDepth
from lingo.layers.context import apply
from lingo.layers.dropout import Dropout, dropout
from lingo.layers.layer import Layer
from lingo.ops import random

X = tf.ones([4, 3, 5])
TRAINING = {"training": True, "key": random.root_key(0), "rows": tf.range(4)}


class Twice(Layer):
    """Two dropouts under the names given."""

    names: list[str]  # of the two values

    def __call__(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(dropout(self, x, rate=0.5, name=name) for name in self.p.names)


def test_training_zeroes_and_anything_else_does_not() -> None:
    layer = Dropout.params(rate=0.5).build()
    np.testing.assert_array_equal(np.unique(apply(layer, {}, X, call=TRAINING)[0]), [0, 2])
    np.testing.assert_array_equal(apply(layer, {}, X)[0], X)


def test_rate_zero_draws_nothing_and_needs_no_key() -> None:
    layer = Dropout.params(rate=0.0).build()
    np.testing.assert_array_equal(apply(layer, {}, X, call={"training": True})[0], X)


def test_two_values_of_a_layer_have_masks_of_their_own() -> None:
    (first, second), _ = apply(Twice.params(names=["a", "b"]).build(), {}, X, call=TRAINING)
    assert not np.array_equal(first, second)
    (first, second), _ = apply(Twice.params(names=["a", "a"]).build(), {}, X, call=TRAINING)
    np.testing.assert_array_equal(first, second)


def test_a_position_is_dropped_with_all_its_features() -> None:
    layer = Dropout.params(rate=0.5, form="position").build()
    y = apply(layer, {}, X, call=TRAINING)[0].numpy()
    np.testing.assert_array_equal(y, np.broadcast_to(y[..., :1], y.shape))
    assert set(np.unique(y)) == {0, 2}


@pytest.mark.parametrize("missing", ["key", "rows"])
def test_what_dropout_needs_of_the_context_is_named(missing: str) -> None:
    call = {name: value for name, value in TRAINING.items() if name != missing}
    with pytest.raises(RuntimeError, match=f"Dropout: .* {missing} .*in the call context"):
        apply(Dropout.params(rate=0.5).build(), {}, X, call=call)


NUM_EXAMPLES, RATE = 400, 0.2
BRANCHES = np.random.default_rng(0).normal(size=[NUM_EXAMPLES, 2, 3, 4]).astype(np.float32)


def train(rows: Any, *, rate: float = RATE, step: int = 1) -> np.ndarray:
    layer = StochasticDepth.params(rate=rate).build()
    call = {"training": True, "key": random.root_key(step), "rows": tf.constant(rows, tf.int32)}
    return apply(layer, {}, tf.constant(BRANCHES[rows]), call=call)[0].numpy()


def test_a_branch_is_zero_for_an_example_or_divided_by_its_probability_of_survival() -> None:
    y = train(range(NUM_EXAMPLES))
    survived = y.any((1, 2, 3))
    np.testing.assert_allclose(y[survived], BRANCHES[survived] / (1 - RATE), rtol=1e-6)
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
    np.testing.assert_array_equal(apply(layer, {}, tf.constant(BRANCHES))[0], BRANCHES)
    np.testing.assert_array_equal(train(range(NUM_EXAMPLES), rate=0.0), BRANCHES)
    assert layer.output_shape(BRANCHES.shape) == BRANCHES.shape
