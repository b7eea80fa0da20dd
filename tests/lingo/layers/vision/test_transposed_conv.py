"""Transposed convolutions, against Keras, the gradient of a convolution and slow NumPy."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Conv2D, TransposedConv2D, UpConv3D
from lingo.layers.context import apply
from lingo.learner.state import initial_value

X = np.random.default_rng(0).normal(size=[2, 4, 5, 3]).astype(np.float32)
VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2]).astype("f")
OVER_PADDING = pytest.mark.parametrize("padding", ["SAME", "VALID"])
OVER_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), 1), ((3, 3), 2), ((4, 2), 2), ((2, 5), 3), ((1, 1), 2)]
)


@OVER_PADDING
@OVER_WINDOWS
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_that_of_keras(kernel, stride, padding, use_bias, draw, traced_flops):
    layer = TransposedConv2D.params(
        dim=3, output_dim=5, kernel=kernel, stride=stride, padding=padding, use_bias=use_bias
    ).build()
    weights = draw(layer)
    oracle = keras.layers.Conv2DTranspose(5, kernel, stride, padding.lower(), use_bias=use_bias)
    oracle.build(X.shape)
    kernel_of_keras = np.swapaxes(weights["w"], 2, 3)
    oracle.set_weights([kernel_of_keras, weights["b"]] if use_bias else [kernel_of_keras])
    y = apply(layer, weights, X)[0]
    np.testing.assert_allclose(y, oracle(X), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


@OVER_PADDING
def test_is_the_transpose_of_a_convolution(padding, draw) -> None:
    fields = {"kernel": (3, 2), "stride": 2, "padding": padding}
    layer = TransposedConv2D.params(dim=3, output_dim=5, **fields).build()
    conv = Conv2D.params(dim=5, output_dim=3, **fields).build()
    weights = draw(layer)
    y = apply(layer, weights, X)[0]
    images = tf.constant(np.random.default_rng(1).normal(size=y.shape).astype(np.float32))
    there = apply(conv, {"w": np.swapaxes(weights["w"], 2, 3)}, images)[0]
    np.testing.assert_allclose(np.sum(images * y), np.sum(there * X), rtol=1e-4)


@pytest.mark.parametrize("kernel", [(4, 4), (2, 2), (6, 2)])
def test_initial_weights_keep_the_size_of_what_a_relu_lets_through(kernel) -> None:
    x = np.maximum(np.random.default_rng(0).normal(size=[2, 12, 12, 64]), 0).astype(np.float32)
    layer = TransposedConv2D.params(dim=64, output_dim=64, kernel=kernel).build()
    weights = {name: initial_value(spec, 0) for name, spec in layer.weights().items()}
    y = apply(layer, weights, x)[0][:, 2:-2, 2:-2]  # nothing is cut off
    assert np.mean(np.square(y)) == pytest.approx(2 * np.mean(np.square(x)), rel=0.1)


def test_axes_are_those_of_the_channels() -> None:
    params = TransposedConv2D.params(dim=3, output_dim=5, use_bias=True, axes=("embed", "mlp"))
    assert {name: spec.axes for name, spec in params.build().weights().items()} == {
        "w": (None, None, "embed", "mlp"),
        "b": ("mlp",),
    }


def test_an_up_convolution_makes_a_window_of_each_position(draw) -> None:
    layer = UpConv3D.params(dim=2, output_dim=3).build()
    w = draw(layer)["w"]
    y = apply(layer, {"w": w}, VOLUME)[0]
    assert y.shape == layer.output_shape(VOLUME.shape) == (2, 10, 8, 6, 3)
    for d, h, v in itertools.product(range(10), range(8), range(6)):
        expected = VOLUME[:, d // 2, h // 2, v // 2] @ w[d % 2, h % 2, v % 2]
        np.testing.assert_allclose(y[:, d, h, v], expected, rtol=1e-4, atol=1e-5)
