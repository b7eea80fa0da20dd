"""Convolution of sequences, against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Conv1D
from lingo.layers.context import apply

OVER_LENGTHS = pytest.mark.parametrize("length", [9, 10])


@OVER_LENGTHS
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [(3, 1, 1), (3, 2, 1), (2, 1, 1), (4, 2, 1), (3, 1, 3), (1, 1, 1), (1, 2, 1)],
)
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_that_of_keras(kernel, stride, dilation, padding, use_bias, length, draw):
    x = np.random.default_rng(0).normal(size=[2, length, 3]).astype(np.float32)
    layer = Conv1D.params(
        dim=3,
        output_dim=5,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        use_bias=use_bias,
    ).build()
    weights = draw(layer)
    oracle = keras.layers.Conv1D(
        5, kernel, stride, padding.lower(), dilation_rate=dilation, use_bias=use_bias
    )
    oracle.build(x.shape)
    oracle.set_weights([weights[name] for name in ("w", "b") if name in weights])
    y = apply(layer, weights, x)[0]
    np.testing.assert_allclose(y, oracle(x), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(x.shape) == tuple(y.shape)


@OVER_LENGTHS
@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "VALID")])
def test_flops_are_those_of_the_call(length, stride, padding, traced_flops) -> None:
    layer = Conv1D.params(dim=3, output_dim=5, stride=stride, padding=padding).build()
    x = np.zeros([2, length, 3], np.float32)
    assert layer.flops(x.shape) == traced_flops(layer, x)


def test_axes_are_those_of_the_channels() -> None:
    params = Conv1D.params(dim=3, output_dim=5, use_bias=True, axes=("embed", "mlp"))
    axes = {name: spec.axes for name, spec in params.build().weights().items()}
    assert axes == {"w": (None, "embed", "mlp"), "b": ("mlp",)}


def test_a_sequence_shorter_than_the_dilated_window_is_refused() -> None:
    layer = Conv1D.params(dim=3, output_dim=5, dilation=3, padding="VALID").build()
    assert layer.output_shape([1, 7, 3]) == (1, 1, 5)
    with pytest.raises(ParamError, match=r"\[7\] does not fit into an image \[6\]"):
        layer.output_shape([1, 6, 3])


def test_strides_of_single_positions_have_the_right_gradient():
    """With fewer than 16 channels, oneDNN's gradient writes to memory that is not its own."""
    x = np.random.default_rng(0).normal(size=[8, 4096, 4]).astype("f")
    layer = Conv1D.params(dim=4, output_dim=8, kernel=1, stride=2).build()
    w = tf.constant(np.random.default_rng(1).normal(size=[1, 4, 8]), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(tf.sin(apply(layer, {"w": w}, tf.constant(x))[0]))
    rows = x[:, ::2].reshape(-1, 4)
    expected = rows.T @ np.cos(rows @ w.numpy()[0])
    np.testing.assert_allclose(tape.gradient(loss, w)[0], expected, rtol=0, atol=1e-3)
