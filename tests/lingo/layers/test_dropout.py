"""Dropout in layers."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
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
