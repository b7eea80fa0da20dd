"""Convolution, against Keras."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Conv2D, Conv3D, Layer
from lingo.layers.context import apply
from lingo.learner.state import initial_value

X = np.random.default_rng(0).normal(size=[2, 7, 10, 3]).astype(np.float32)
VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2]).astype("f")
OVER_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride"), [((1, 1), 1), ((1, 1), 2), ((3, 3), 2), ((1, 7), 1), ((4, 3), 3)]
)
OVER_PADDING = pytest.mark.parametrize("padding", ["SAME", "VALID"])


def conv(**fields: Any) -> Layer:
    return Conv2D.params(dim=3, output_dim=5, **fields).build()


@OVER_PADDING
@OVER_WINDOWS
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_that_of_keras(kernel, stride, padding, use_bias, draw):
    layer = conv(kernel=kernel, stride=stride, padding=padding, use_bias=use_bias)
    weights = draw(layer)
    oracle = keras.layers.Conv2D(5, kernel, stride, padding.lower(), use_bias=use_bias)
    oracle.build(X.shape)
    oracle.set_weights([weights[name] for name in ("w", "b") if name in weights])
    np.testing.assert_allclose(apply(layer, weights, X)[0], oracle(X), rtol=1e-5, atol=1e-5)


@OVER_PADDING
def test_a_dilated_one_equals_that_of_keras(padding, draw):
    layer = conv(kernel=(3, 2), dilation=2, padding=padding)
    weights = draw(layer)
    oracle = keras.layers.Conv2D(5, (3, 2), 1, padding.lower(), dilation_rate=2, use_bias=False)
    oracle.build(X.shape)
    oracle.set_weights([weights["w"]])
    y = apply(layer, weights, X)[0]
    np.testing.assert_allclose(y, oracle(X), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)


@pytest.mark.parametrize("channels", [4, 15, 16])
def test_strides_of_single_positions_have_the_right_gradient_of_any_channels(channels):
    """With fewer than 16, oneDNN's gradient of the kernel writes to memory that is not its own."""
    x = np.random.default_rng(0).normal(size=[4, 64, 64, channels]).astype("f")
    layer = Conv2D.params(dim=channels, output_dim=8, kernel=(1, 1), stride=2).build()
    w = tf.constant(np.random.default_rng(1).normal(size=[1, 1, channels, 8]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(tf.sin(apply(layer, {"w": w}, tf.constant(x))[0]))
    rows = x[:, ::2, ::2].reshape(-1, channels)
    expected = rows.T @ np.cos(rows @ w.numpy()[0, 0])
    np.testing.assert_allclose(tape.gradient(loss, w)[0, 0], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_other_channels_than_dim_are_refused(kernel, draw):
    """TensorFlow would take six channels as two groups of three."""
    layer = conv(kernel=kernel)
    with pytest.raises(
        ParamError, match=r"dim=3, but the input has 6 channels, as \(2, 7, 10, 6\)"
    ):
        apply(layer, draw(layer), np.concatenate([X, X], axis=-1))


@pytest.mark.parametrize(("kernel", "operation"), [((1, 1), "MatMul"), ((1, 2), "Conv2D")])
def test_a_kernel_of_one_position_is_a_product_of_matrices(kernel, operation, draw):
    layer = conv(kernel=kernel, stride=2)
    weights = {name: tf.constant(value) for name, value in draw(layer).items()}
    function = tf.function(lambda x: apply(layer, weights, x)[0], autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, 7, None, 3])).graph
    products = {op.type for op in graph.get_operations()} & {"MatMul", "Conv2D"}
    assert products == {operation}
    np.testing.assert_allclose(function(X), apply(layer, weights, X)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_xla_compiles_convolves_to_the_same(stride, draw):
    layer = conv(kernel=(1, 1), stride=stride)
    weights, call = draw(layer), {"compiled": True}
    compute = tf.function(lambda x: apply(layer, weights, x, call=call)[0], jit_compile=True)
    graph = compute.get_concrete_function(tf.constant(X)).graph
    assert "Conv2D" in {op.type for op in graph.get_operations()}
    expected = apply(layer, weights, X)[0]
    np.testing.assert_allclose(compute(tf.constant(X)), expected, rtol=1e-5, atol=1e-5)


@OVER_PADDING
@OVER_WINDOWS
def test_output_shape_and_flops_are_those_of_the_call(kernel, stride, padding, draw, traced_flops):
    layer = conv(kernel=kernel, stride=stride, padding=padding)
    assert layer.output_shape(X.shape) == tuple(apply(layer, draw(layer), X)[0].shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_initial_weights_keep_the_size_of_what_a_relu_lets_through() -> None:
    layer = Conv2D.params(dim=32, output_dim=64, kernel=(3, 3)).build()
    weights = {name: initial_value(spec, 0) for name, spec in layer.weights().items()}
    x = np.maximum(np.random.default_rng(0).normal(size=[2, 16, 16, 32]), 0).astype(np.float32)
    y = apply(layer, weights, x)[0][:, 1:-1, 1:-1]  # no padding
    assert np.mean(np.square(y)) == pytest.approx(2 * np.mean(np.square(x)), rel=0.05)


def test_axes_are_those_of_the_channels() -> None:
    layer = conv(use_bias=True, axes=("embed", "mlp"))
    assert {name: spec.axes for name, spec in layer.weights().items()} == {
        "w": (None, None, "embed", "mlp"),
        "b": ("mlp",),
    }


def test_an_image_smaller_than_the_window_is_refused() -> None:
    layer = conv(kernel=(3, 3), padding="VALID")
    assert layer.output_shape([1, 3, 3, 3]) == (1, 1, 1, 5)
    with pytest.raises(ParamError, match=r"\[3, 3\] does not fit into an image \[2, 9\]"):
        layer.output_shape([1, 2, 9, 3])


def windows(x, kernel, stride, before):
    """Returns what each window of padding SAME covers: {place: [B, kd, kh, kw, C]}."""
    padded = np.pad(x, [(0, 0), *[(n, 9) for n in before], (0, 0)])
    counts = [-(-size // stride) for size in x.shape[1:-1]]
    found = {}
    for place in itertools.product(*map(range, counts)):
        cuts = [slice(i * stride, i * stride + k) for i, k in zip(place, kernel, strict=True)]
        found[place] = padded[:, *cuts]
    return found


# a depth of 5 needs 2 zeros for windows of 3, one of them before; the others need none
@pytest.mark.parametrize(("kernel", "before"), [((3, 2, 1), (1, 0, 0)), ((1, 1, 1), (0, 0, 0))])
def test_a_convolution_of_volumes_sums_over_windows(kernel, before, draw) -> None:
    layer = Conv3D.params(dim=2, output_dim=4, kernel=kernel, stride=2, use_bias=True).build()
    weights = draw(layer)
    y = apply(layer, weights, VOLUME)[0]
    for place, window in windows(VOLUME, kernel, 2, before).items():
        expected = np.einsum("bijkc,ijkcf->bf", window, weights["w"]) + weights["b"]
        np.testing.assert_allclose(y[:, *place], expected, rtol=1e-4, atol=1e-5)
    assert y.shape == layer.output_shape(VOLUME.shape)
