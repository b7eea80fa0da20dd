"""Logits by a matrix of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lingo.layers.context import apply
from lingo.layers.sequence.softmax import SoftmaxHead
from lingo.lazy import tf

X = np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)


def test_logits_are_products_with_every_column(draw: Callable) -> None:
    layer = SoftmaxHead.params(dim=4, vocab_size=7).build()
    weights = draw(layer)
    logits, _ = apply(layer, weights, X)
    np.testing.assert_allclose(logits, X @ weights["w"].numpy(), rtol=1e-5, atol=1e-6)


def test_logits_are_float32_when_the_products_are_bfloat16(draw: Callable) -> None:
    layer = SoftmaxHead.params(dim=4, vocab_size=7, dtype="bfloat16").build()
    assert apply(layer, draw(layer), X)[0].dtype == tf.float32


def test_flops_are_those_of_the_traced_graph(traced_flops: Callable) -> None:
    layer = SoftmaxHead.params(dim=4, vocab_size=7).build()
    assert layer.flops(X.shape) == traced_flops(layer, X) == 2 * 6 * 4 * 7
