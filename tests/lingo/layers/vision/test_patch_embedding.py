"""Patches of images, against a convolution of Keras and a matrix product."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import PatchEmbedding
from lingo.layers.context import apply

X = np.random.default_rng(0).normal(size=[2, 6, 9, 4]).astype(np.float32)


def test_it_is_a_convolution_of_keras_and_a_product_with_flat_patches(draw, traced_flops) -> None:
    layer = PatchEmbedding.params(dim=4, output_dim=5, patch=3).build()
    weights = draw(layer)
    y = apply(layer, weights, X)[0]
    oracle = keras.layers.Conv2D(5, 3, strides=3, padding="valid")
    oracle.build(X.shape)
    oracle.set_weights([weights["conv/w"].numpy(), weights["conv/b"].numpy()])
    np.testing.assert_allclose(y, np.reshape(oracle(X), [2, 6, 5]), rtol=1e-5, atol=1e-5)

    patches = [X[:, i : i + 3, j : j + 3].reshape(2, -1) for i in (0, 3) for j in (0, 3, 6)]
    matrix = np.reshape(weights["conv/w"], [-1, 5])
    expected = np.stack([p @ matrix + weights["conv/b"] for p in patches], axis=1)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert layer.output_shape(X.shape) == tuple(y.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_images_that_patches_do_not_fill_are_refused(draw) -> None:
    layer = PatchEmbedding.params(dim=4, output_dim=5, patch=2).build()
    with pytest.raises(ParamError, match="images of 6 x 9 cannot be cut into patches of 2 x 2"):
        layer.output_shape(X.shape)
    with pytest.raises(ParamError, match="images of 6 x 9"):
        apply(layer, draw(layer), X)
