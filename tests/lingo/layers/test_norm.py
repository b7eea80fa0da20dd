"""Normalization, against Keras."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers.context import apply
from lingo.layers.initial import ZEROS
from lingo.layers.norm import LayerNorm, Norm, RmsNorm

X = 3 + np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)


@pytest.mark.parametrize(
    ("cls", "oracle", "rtol", "atol"),
    [
        (RmsNorm, keras.layers.RMSNormalization, 1e-5, 0),
        (LayerNorm, keras.layers.LayerNormalization, 1e-4, 1e-6),
    ],
)
def test_equals_that_of_keras(cls, oracle, rtol, atol, with_weights):
    layer, weights = with_weights(cls.params(dim=4, epsilon=1e-3).build())
    expected = oracle(epsilon=1e-3)
    expected.build(X.shape)
    expected.set_weights([weights[name] for name in ("scale", "bias") if name in weights])
    np.testing.assert_allclose(apply(layer, weights, X)[0], expected(X), rtol=rtol, atol=atol)


def test_rms_norm_without_scale_has_no_weight_and_brings_features_to_size_one() -> None:
    layer = RmsNorm.params(dim=4, use_scale=False).build()
    y, _ = apply(layer, {}, X)
    assert not layer.weights()
    np.testing.assert_allclose(np.mean(np.square(y), axis=-1), 1.0, rtol=1e-5)


def test_a_norm_that_adds_one_multiplies_by_one_more_than_its_scale(draw: Callable) -> None:
    layer = RmsNorm.params(dim=4, adds_one=True).build()
    weights = draw(layer)
    more = {"scale": 1 + weights["scale"]}
    expected, _ = apply(RmsNorm.params(dim=4).build(), more, X)
    np.testing.assert_allclose(apply(layer, weights, X)[0], expected, rtol=1e-6)
    (spec,) = layer.weights().values()
    assert spec.init is ZEROS


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
