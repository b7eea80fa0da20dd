"""Logits by the embedding's vectors and by a matrix of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers.context import apply
from lingo.layers.sequence.softmax import Head, SoftmaxHead, TiedHead

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=[2, 3, 4]).astype(np.float32)
VECTORS = DRAW.normal(size=[7, 4]).astype(np.float32)

both = pytest.mark.parametrize("head", [TiedHead, SoftmaxHead])


def test_a_tied_head_multiplies_with_the_vector_of_every_token() -> None:
    layer = TiedHead.params(dim=4, vocab_size=7).build()
    assert not layer.weights()
    logits, _ = apply(layer, {}, X, VECTORS)
    np.testing.assert_allclose(logits, X @ VECTORS.T, rtol=1e-5, atol=1e-6)


def test_a_head_of_its_own_multiplies_with_every_column(with_weights) -> None:
    layer, weights = with_weights(SoftmaxHead.params(dim=4, vocab_size=7).build())
    logits, _ = apply(layer, weights, X, VECTORS)
    np.testing.assert_allclose(logits, X @ weights["w"].numpy(), rtol=1e-5, atol=1e-6)


def test_a_bias_adds_to_the_logit_of_each_token(draw: Callable) -> None:
    layer = SoftmaxHead.params(dim=4, vocab_size=7, use_bias=True).build()
    weights = draw(layer)
    assert {name: spec.axes for name, spec in layer.weights().items()} == {
        "w": ("embed", "vocab"),
        "b": ("vocab",),
    }
    logits, _ = apply(layer, weights, X, VECTORS)
    expected = X @ weights["w"].numpy() + weights["b"].numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@both
def test_a_scale_multiplies_the_logits_before_the_cap(head: type[Head], draw: Callable) -> None:
    free = head.params(dim=4, vocab_size=7)
    weights = draw(free.build())
    logits = apply(free.build(), weights, X, VECTORS)[0].numpy()
    scaled, _ = apply(free.copy().set(logit_scale=0.5, logit_cap=2.0).build(), weights, X, VECTORS)
    np.testing.assert_allclose(scaled, 2.0 * np.tanh(logits / 4.0), rtol=1e-5, atol=1e-6)


@both
def test_a_cap_bends_logits_between_its_bounds(head: type[Head], draw: Callable) -> None:
    free = head.params(dim=4, vocab_size=7)
    weights = draw(free.build())
    logits = apply(free.build(), weights, X, VECTORS)[0].numpy()
    capped, _ = apply(free.copy().set(logit_cap=2.0).build(), weights, X, VECTORS)
    assert np.abs(logits).max() > 2.0 > np.abs(capped).max()
    np.testing.assert_allclose(capped, 2.0 * np.tanh(logits / 2.0), rtol=1e-5, atol=1e-6)


@both
def test_logits_are_float32_when_the_products_are_bfloat16(head, draw):
    layer = head.params(dim=4, vocab_size=7, dtype="bfloat16").build()
    assert apply(layer, draw(layer), X, VECTORS)[0].dtype == tf.float32


@both
def test_flops_are_those_of_the_traced_graph(head: type[Head], traced_flops: Callable) -> None:
    class Alone(head):
        """The head, with fixed vectors."""

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return super().__call__(x, tf.constant(VECTORS))

    layer = Alone.params(dim=4, vocab_size=7).build()
    assert layer.flops(X.shape) == traced_flops(layer, X) == 2 * 6 * 4 * 7
