"""Convolution of sequences, against Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Conv1D, DepthwiseConv1D
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


# ---- each channel by itself ----------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=[2, 9, 3]).astype(np.float32)


@pytest.mark.parametrize(
    ("fields", "padding"),
    [
        ({"kernel": 4}, "same"),
        ({"kernel": 3, "stride": 2}, "same"),
        ({"kernel": 3, "padding": "VALID"}, "valid"),
        ({"kernel": 2, "dilation": 3}, "same"),
        ({"kernel": 4, "is_causal": True}, "causal"),
        ({"kernel": 2, "dilation": 3, "is_causal": True}, "causal"),
    ],
)
def test_a_depthwise_convolution_equals_that_of_numpy(fields, padding, draw):
    layer = DepthwiseConv1D.params(dim=3, multiplier=2, use_bias=True, **fields).build()
    weights = draw(layer)
    kernel, step, gap = fields["kernel"], fields.get("stride", 1), fields.get("dilation", 1)
    extent = (kernel - 1) * gap
    total = max(((9 - 1) // step) * step + extent + 1 - 9, 0)
    before = {"same": total // 2, "valid": 0, "causal": extent}[padding]
    after = {"same": total - total // 2, "valid": 0, "causal": 0}[padding]
    x = np.pad(X, [(0, 0), (before, after), (0, 0)])
    starts = range(0, x.shape[1] - extent, step)
    w = np.asarray(weights["w"])
    taps = [[x[:, s + i * gap, :, None] * w[i] for i in range(kernel)] for s in starts]
    expected = np.stack([np.sum(t, 0).reshape(2, 6) for t in taps], 1) + weights["b"]
    y = apply(layer, weights, X)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert layer.output_shape(X.shape) == y.shape


def test_a_causal_convolution_has_no_stride_and_others_have_no_steps(draw) -> None:
    with pytest.raises(ParamError, match=r"stride=2 with is_causal=True"):
        DepthwiseConv1D.params(dim=3, stride=2, is_causal=True).build()
    layer = DepthwiseConv1D.params(dim=3).build()
    with pytest.raises(ValueError, match=r"reads later positions.*take is_causal=True"):
        apply(layer, draw(layer), X, 0, method="step")
