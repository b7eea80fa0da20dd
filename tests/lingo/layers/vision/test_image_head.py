"""The head of an image classifier, against NumPy."""

from __future__ import annotations

import numpy as np

from lingo.config.lazy import tf
from lingo.layers import ImageHead
from lingo.layers.context import apply
from lingo.ops import random

X = np.random.default_rng(0).normal(size=[2, 3, 4, 5]).astype(np.float32)


def test_logits_are_a_linear_map_of_the_mean(draw, traced_flops) -> None:
    layer = ImageHead.params(dim=5, num_classes=7, dropout_rate=0.5).build()
    weights = draw(layer)
    y = apply(layer, weights, X)[0]
    expected = X.mean((1, 2)) @ weights["linear/w"] + weights["linear/b"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_in_training_channels_of_the_mean_are_dropped() -> None:
    layer = ImageHead.params(dim=5, num_classes=5, dropout_rate=0.5).build()
    weights = {"linear/w": tf.eye(5), "linear/b": tf.zeros(5)}
    call = {"training": True, "key": random.root_key(0), "rows": tf.range(2)}
    y = apply(layer, weights, X, call=call)[0].numpy()
    assert 0 < np.sum(y == 0) < y.size
    np.testing.assert_allclose(y[y != 0], (2 * X.mean((1, 2)))[y != 0], rtol=1e-5)
