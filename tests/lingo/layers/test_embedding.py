"""A table of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.config.lazy import tf
from lingo.layers.context import apply
from lingo.layers.embedding import Embedding

LAYER = Embedding.params(vocab_size=7, dim=4)


def test_each_id_finds_its_row(draw: Callable) -> None:
    layer, ids = LAYER.build(), np.array([[0, 6, 6], [3, 2, 1]])
    weights = draw(layer)
    np.testing.assert_array_equal(apply(layer, weights, ids)[0], weights["table"].numpy()[ids])


def test_the_vectors_of_all_tokens_are_the_table(with_weights) -> None:
    layer, weights = with_weights(LAYER.build())
    vectors, _ = apply(layer, weights, method="vectors")
    np.testing.assert_array_equal(vectors, weights["table"])


def test_rows_start_with_length_one() -> None:
    spec = LAYER.build().weights()["table"]
    assert spec.fan_in == 4
    assert spec.axes == ("vocab", "embed")


def test_vectors_have_the_type_of_the_computation(draw: Callable) -> None:
    layer = LAYER.copy().set(dtype="bfloat16").build()
    assert apply(layer, draw(layer), [[1]])[0].dtype == tf.bfloat16
    assert apply(layer, draw(layer), method="vectors")[0].dtype == tf.bfloat16


def test_a_lookup_multiplies_nothing(traced_flops: Callable) -> None:
    layer = LAYER.build()
    assert layer.flops([2, 3]) == traced_flops(layer, tf.zeros([2, 3], tf.int32)) == 0
