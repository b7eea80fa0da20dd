"""Pooling, against Keras and slow NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import apply
from lingo.layers.vision.pool import AveragePool, MaxPool, MaxPool3D, Pool

X = np.random.default_rng(0).normal(size=[2, 7, 10, 3]).astype(np.float32)
VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2]).astype("f")
ORACLES = {MaxPool: keras.layers.MaxPooling2D, AveragePool: keras.layers.AveragePooling2D}
OVER_KINDS = pytest.mark.parametrize("cls", ORACLES)


@OVER_KINDS
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("window", "stride"), [((2, 2), 2), ((3, 3), 1), ((3, 2), 2)])
def test_equals_that_of_keras(cls, window, stride, padding):
    layer = cls.params(window=window, stride=stride, padding=padding).build()
    y = apply(layer, {}, X)[0]
    np.testing.assert_allclose(y, ORACLES[cls](window, stride, padding.lower())(X), rtol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)


@OVER_KINDS
def test_the_result_has_the_dtype_of_the_layer(cls: type[Pool]) -> None:
    assert apply(cls.params(dtype="bfloat16").build(), {}, X)[0].dtype == tf.bfloat16


@OVER_KINDS
def test_the_gradient_equals_that_of_keras(cls: type[Pool]) -> None:
    layer, oracle = cls.params(window=(3, 3), stride=2).build(), ORACLES[cls](3, 2, "same")

    def gradient(pool: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(pool(x) ** 2)
        return np.asarray(tape.gradient(loss, x))

    result = gradient(lambda x: apply(layer, {}, x)[0])
    np.testing.assert_allclose(result, gradient(oracle), rtol=1e-5)


@pytest.mark.parametrize("size", [(7, 10), (8, 9)])
def test_centered_windows_see_the_same_as_with_a_border_below_all_values(size) -> None:
    x = np.random.default_rng(0).normal(size=[2, *size, 3]).astype("f") - 5
    layer = MaxPool.params(window=(3, 3), stride=2, padding="CENTERED").build()
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    y = apply(layer, {}, x)[0]
    np.testing.assert_array_equal(y, keras.layers.MaxPooling2D(3, 2)(padded))
    assert layer.output_shape(x.shape) == tuple(y.shape)


def test_centered_windows_are_refused_without_a_middle_and_for_means() -> None:
    with pytest.raises(ParamError, match=r"padding=CENTERED with a window of \(2, 2\)"):
        MaxPool.params(padding="CENTERED").build()
    with pytest.raises(ParamError, match="padding=CENTERED is for MaxPool"):
        AveragePool.params(window=(3, 3), padding="CENTERED").build()


def test_a_pool_of_volumes_takes_the_maximum_of_what_lies_inside() -> None:
    layer = MaxPool3D.params().build()
    y = apply(layer, {}, VOLUME - 10)[0]
    assert y.shape == layer.output_shape(VOLUME.shape) == (2, 3, 2, 2, 2)
    for d, h, v in itertools.product(range(3), range(2), range(2)):
        window = VOLUME[:, 2 * d : 2 * d + 2, 2 * h : 2 * h + 2, 2 * v : 2 * v + 2] - 10
        np.testing.assert_allclose(y[:, d, h, v], window.max(axis=(1, 2, 3)), rtol=1e-6)
