"""Convolutions of each channel by itself, against Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.layers import Conv2D, DepthwiseConv2D, SeparableConv2D
from lingo.layers.context import apply
from lingo.layers.convolution import DepthwiseConv
from lingo.learner.state import initial_value

X = np.random.default_rng(0).normal(size=[2, 7, 10, 3]).astype(np.float32)
OVER_PADDING = pytest.mark.parametrize("padding", ["SAME", "VALID"])
OVER_WINDOWS = pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [((3, 3), 1, 1), ((3, 3), 2, 1), ((4, 2), 1, 1), ((2, 4), 2, 1), ((1, 3), 1, 2)],
)


class OnMesh:
    """The rules of a mesh that splits nothing."""

    def activation(self, x: Any, axes: Any) -> Any:
        del axes
        return x

    weight = activation


@OVER_PADDING
@OVER_WINDOWS
@pytest.mark.parametrize("rules", [None, OnMesh()], ids=["device", "mesh"])
@pytest.mark.parametrize(("multiplier", "use_bias"), [(1, False), (2, True)])
def test_a_depthwise_one_equals_that_of_keras(
    kernel, stride, dilation, padding, rules, multiplier, use_bias, draw
):
    layer = DepthwiseConv2D.params(
        dim=3,
        multiplier=multiplier,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        use_bias=use_bias,
    ).build()
    weights = draw(layer)
    oracle = keras.layers.DepthwiseConv2D(
        kernel, stride, padding.lower(), multiplier, dilation_rate=dilation, use_bias=use_bias
    )
    oracle.build(X.shape)
    oracle.set_weights([weights[name] for name in ("w", "b") if name in weights])
    y = apply(layer, weights, X, call={"rules": rules})[0]
    np.testing.assert_allclose(y, oracle(X), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)


class DepthwiseConv1D(DepthwiseConv):
    kernel: int = 3
    rank = 1


@OVER_PADDING
def test_a_depthwise_one_of_another_rank_needs_no_more_than_its_rank(padding, draw) -> None:
    layer = DepthwiseConv1D.params(dim=3, multiplier=2, dilation=2, padding=padding).build()
    weights, x = draw(layer), X[:, 0]
    oracle = keras.layers.DepthwiseConv1D(3, 1, padding.lower(), 2, dilation_rate=2, use_bias=False)
    oracle.build(x.shape)
    oracle.set_weights([weights["w"]])
    y = apply(layer, weights, x)[0]
    np.testing.assert_allclose(y, oracle(x), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(x.shape) == tuple(y.shape)


@OVER_PADDING
@OVER_WINDOWS
def test_a_separable_one_equals_that_of_keras(kernel, stride, dilation, padding, draw):
    layer = SeparableConv2D.params(
        dim=3,
        output_dim=5,
        multiplier=2,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        use_bias=True,
    ).build()
    weights = draw(layer)
    oracle = keras.layers.SeparableConv2D(
        5, kernel, stride, padding.lower(), dilation_rate=dilation, depth_multiplier=2
    )
    oracle.build(X.shape)
    oracle.set_weights([weights[name] for name in ("depthwise/w", "pointwise/w", "pointwise/b")])
    y = apply(layer, weights, X)[0]
    np.testing.assert_allclose(y, oracle(X), rtol=1e-5, atol=1e-5)
    assert layer.output_shape(X.shape) == tuple(y.shape)


@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "VALID")])
def test_flops_are_those_of_the_call(stride, padding, traced_flops) -> None:
    fields = {"dim": 3, "multiplier": 2, "stride": stride, "padding": padding}
    for layer in (
        DepthwiseConv2D.params(**fields).build(),
        SeparableConv2D.params(**fields, output_dim=5).build(),
    ):
        assert layer.flops(X.shape) == traced_flops(layer, X)


def test_a_separable_one_needs_fewer_operations_as_documented() -> None:
    shape = [1, 8, 8, 16]
    whole = Conv2D.params(dim=16, output_dim=32, kernel=(3, 3)).build().flops(shape)
    apart = SeparableConv2D.params(dim=16, output_dim=32).build().flops(shape)
    assert whole * (9 + 32) == apart * (9 * 32)


def test_initial_weights_keep_the_size_of_what_a_relu_lets_through() -> None:
    x = np.maximum(np.random.default_rng(0).normal(size=[2, 16, 16, 256]), 0).astype(np.float32)
    depthwise = DepthwiseConv2D.params(dim=256).build()
    separable = SeparableConv2D.params(dim=256, output_dim=256).build()
    for layer, expected in ((depthwise, 2.0), (separable, 2.0)):
        weights = {name: initial_value(spec, 0) for name, spec in layer.weights().items()}
        y = apply(layer, weights, x)[0][:, 1:-1, 1:-1]  # no padding
        assert np.mean(np.square(y)) == pytest.approx(expected * np.mean(np.square(x)), rel=0.1)


def test_the_axis_is_that_of_the_channels() -> None:
    layer = DepthwiseConv2D.params(dim=3, use_bias=True, axis="mlp").build()
    axes = {name: spec.axes for name, spec in layer.weights().items()}
    assert axes == {"w": (None, None, "mlp", None), "b": ("mlp",)}
