"""The class token and the head of a Vision Transformer, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.layers import ClassToken, PatchHead
from lingo.layers.context import apply

X = np.random.default_rng(0).normal(size=[2, 4, 5]).astype(np.float32)


def test_a_class_token_stands_before_the_patches_of_each_image(draw) -> None:
    layer = ClassToken.params(dim=5).build()
    weights = draw(layer)
    y = apply(layer, weights, X)[0]
    np.testing.assert_array_equal(y[:, 0], np.tile(weights["token"], [2, 1]))
    np.testing.assert_array_equal(y[:, 1:], X)
    assert layer.output_shape(X.shape) == tuple(y.shape) == (2, 5, 5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("hidden_dim", [None, 3])
def test_logits_are_those_of_one_vector(pooling, hidden_dim, draw, traced_flops) -> None:
    layer = PatchHead.params(dim=5, num_classes=7, pooling=pooling, hidden_dim=hidden_dim).build()
    weights = draw(layer)
    vector = X.mean(1) if pooling == "mean" else X[:, 0]
    if hidden_dim:
        vector = np.tanh(vector @ weights["hidden/w"] + weights["hidden/b"])
    y = apply(layer, weights, X)[0]
    expected = vector @ weights["linear/w"] + weights["linear/b"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)
