"""Patches of images: their vectors, positions and logits, against Keras and NumPy."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from lingo import layers
from lingo.config.params import ParamError
from lingo.layers.context import apply

X = np.random.default_rng(0).normal(size=[2, 6, 9, 4]).astype(np.float32)


def test_it_is_a_convolution_of_keras_and_a_product_with_flat_patches(draw, traced_flops) -> None:
    layer = layers.PatchEmbedding.params(dim=4, output_dim=5, patch=3).build()
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
    layer = layers.PatchEmbedding.params(dim=4, output_dim=5, patch=2).build()
    with pytest.raises(ParamError, match="images of 6 x 9 cannot be cut into patches of 2 x 2"):
        layer.output_shape(X.shape)
    with pytest.raises(ParamError, match="images of 6 x 9"):
        apply(layer, draw(layer), X)


PATCHES = np.random.default_rng(0).normal(size=[2, 4, 5]).astype(np.float32)


def test_a_class_token_stands_before_the_patches_of_each_image(draw) -> None:
    layer = layers.ClassToken.params(dim=5).build()
    weights = draw(layer)
    y = apply(layer, weights, PATCHES)[0]
    np.testing.assert_array_equal(y[:, 0], np.tile(weights["token"], [2, 1]))
    np.testing.assert_array_equal(y[:, 1:], PATCHES)
    assert layer.output_shape(PATCHES.shape) == tuple(y.shape) == (2, 5, 5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("hidden_dim", [None, 3])
def test_logits_are_those_of_one_vector(pooling, hidden_dim, draw, traced_flops) -> None:
    layer = layers.PatchHead.params(
        dim=5, num_classes=7, pooling=pooling, hidden_dim=hidden_dim
    ).build()
    weights = draw(layer)
    vector = PATCHES.mean(1) if pooling == "mean" else PATCHES[:, 0]
    if hidden_dim:
        vector = np.tanh(vector @ weights["hidden/w"] + weights["hidden/b"])
    y = apply(layer, weights, PATCHES)[0]
    expected = vector @ weights["linear/w"] + weights["linear/b"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert layer.output_shape(PATCHES.shape) == tuple(y.shape)
    assert layer.flops(PATCHES.shape) == traced_flops(layer, PATCHES)


def test_the_table_of_vit_s_16_has_its_known_values() -> None:
    table = layers.SinusoidImagePositions.params(dim=384, grid=(14, 14)).build().table()
    assert table.shape == (196, 384)
    np.testing.assert_allclose(np.sum(np.square(table, dtype=float), axis=1), 192, rtol=1e-6)
    assert table[1, 0] == pytest.approx(0.8414709848, abs=1e-7)  # sin(1): the second column


def test_quarters_are_sines_and_cosines_of_the_column_and_of_the_row() -> None:
    layer = layers.SinusoidImagePositions.params(dim=12, grid=(2, 3)).build()
    patches = np.random.default_rng(0).normal(size=[2, 6, 12]).astype(np.float32)
    added = apply(layer, {}, patches)[0] - patches
    for t in range(6):
        y, x = divmod(t, 3)
        w = [10_000.0 ** (-i / 2) for i in range(3)]
        row = [f(place * v) for place in (x, y) for f in (math.sin, math.cos) for v in w]
        np.testing.assert_allclose(added[0, t], row, atol=1e-6)
    np.testing.assert_allclose(added[0], added[1], atol=1e-6)
    assert layer.output_shape(patches.shape) == patches.shape
    assert not layer.weights()


def test_learned_vectors_are_added_to_each_image(draw) -> None:
    layer = layers.LearnedImagePositions.params(dim=5, grid=(2, 3)).build()
    weights, patches = draw(layer), np.ones([2, 6, 5], np.float32)
    assert {name: spec.shape for name, spec in layer.weights().items()} == {"vectors": (6, 5)}
    np.testing.assert_allclose(apply(layer, weights, patches)[0], patches + weights["vectors"])


def test_a_token_before_the_patches_can_have_a_position(draw) -> None:
    layer = layers.LearnedImagePositions.params(dim=5, grid=(2, 3), num_tokens=1).build()
    weights, vectors = draw(layer), np.ones([2, 7, 5], np.float32)
    assert weights["vectors"].shape == (7, 5)
    np.testing.assert_allclose(apply(layer, weights, vectors)[0], vectors + weights["vectors"])
    with pytest.raises(ParamError, match=r"6 patches, but grid=\(2, 3\) and num_tokens=1 has 7"):
        apply(layer, weights, vectors[:, 1:])


def test_another_number_of_patches_is_refused() -> None:
    layer = layers.SinusoidImagePositions.params(dim=8, grid=(2, 3)).build()
    with pytest.raises(ParamError, match=r"7 patches, but grid=\(2, 3\) has 6"):
        apply(layer, {}, np.ones([2, 7, 8], np.float32))
