"""A table of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.layers.context import apply
from lingo.layers.embedding import Embedding
from lingo.lazy import tf

LAYER = Embedding.params(vocab_size=7, dim=4)


def test_each_id_finds_its_row(draw: Callable) -> None:
    layer, ids = LAYER.build(), np.array([[0, 6, 6], [3, 2, 1]])
    weights = draw(layer)
    np.testing.assert_array_equal(apply(layer, weights, ids)[0], weights["table"].numpy()[ids])


def test_logits_are_products_with_every_row(draw: Callable) -> None:
    layer, x = LAYER.build(), np.random.default_rng(0).normal(size=[2, 3, 4])
    weights = draw(layer)
    logits, _ = apply(layer, weights, x, method="logits")
    np.testing.assert_allclose(logits, x @ weights["table"].numpy().T, rtol=1e-5, atol=1e-6)


def test_rows_start_with_length_one() -> None:
    spec = LAYER.build().weights()["table"]
    assert spec.fan_in == 4
    assert spec.axes == ("vocab", "embed")


def test_bfloat16_vectors_and_float32_logits(draw: Callable) -> None:
    layer = LAYER.copy().set(dtype="bfloat16").build()
    vectors, _ = apply(layer, draw(layer), [[1]])
    assert vectors.dtype == tf.bfloat16
    assert apply(layer, draw(layer), vectors, method="logits")[0].dtype == tf.float32


def test_flops_are_those_of_the_traced_graph(traced_flops: Callable) -> None:
    layer = LAYER.build()
    assert layer.flops([2, 3]) == traced_flops(layer, tf.zeros([2, 3], tf.int32)) == 0
    logits = traced_flops(layer, tf.zeros([2, 3, 4]), "logits")
    assert layer.logits_flops(2 * 3) == logits == 2 * 6 * 4 * 7
