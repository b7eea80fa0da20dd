"""Normalization, against Keras."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import apply
from lingo.layers.norm import LayerNorm, Norm, RmsNorm

X = 3 + np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)


def test_rms_norm_equals_that_of_keras(draw: Callable) -> None:
    layer = RmsNorm.params(dim=4, epsilon=1e-3).build()
    weights, oracle = draw(layer), keras.layers.RMSNormalization(epsilon=1e-3)
    oracle.build(X.shape)
    oracle.set_weights([weights["scale"]])
    np.testing.assert_allclose(apply(layer, weights, X)[0], oracle(X), rtol=1e-5)


def test_rms_norm_without_scale_has_no_weight_and_brings_features_to_size_one() -> None:
    layer = RmsNorm.params(dim=4, use_scale=False).build()
    y, _ = apply(layer, {}, X)
    assert not layer.weights()
    np.testing.assert_allclose(np.mean(np.square(y), axis=-1), 1.0, rtol=1e-5)


def test_layer_norm_equals_that_of_keras(draw: Callable) -> None:
    layer = LayerNorm.params(dim=4, epsilon=1e-3).build()
    weights, oracle = draw(layer), keras.layers.LayerNormalization(epsilon=1e-3)
    oracle.build(X.shape)
    oracle.set_weights([weights["scale"], weights["bias"]])
    np.testing.assert_allclose(apply(layer, weights, X)[0], oracle(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", [RmsNorm, LayerNorm])
def test_statistics_are_float32_while_the_result_is_bfloat16(cls, draw):
    layer = cls.params(dim=4, dtype="bfloat16").build()
    small = tf.cast(1e4 + X, tf.bfloat16)  # squares differ by less than bfloat16 resolves
    y, _ = apply(layer, draw(layer), small)
    exact = apply(cls.params(dim=4).build(), draw(layer), tf.cast(small, tf.float32))[0]
    assert y.dtype == tf.bfloat16
    np.testing.assert_array_equal(y, tf.cast(exact, tf.bfloat16))


@pytest.mark.parametrize("cls", [RmsNorm, LayerNorm])
def test_a_row_of_zeros_stays_finite(cls: type[Norm], draw: Callable) -> None:
    layer = cls.params(dim=4).build()
    assert np.isfinite(apply(layer, draw(layer), tf.zeros([1, 4]))[0]).all()


def test_a_negative_epsilon_is_refused() -> None:
    with pytest.raises(ParamError, match=r"epsilon=-1\.0 is negative"):
        RmsNorm.params(dim=4, epsilon=-1.0).build()
