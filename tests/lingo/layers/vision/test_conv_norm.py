"""Convolution, normalization, activation: in this order, with any convolution and normalization."""

from __future__ import annotations

import numpy as np
import pytest

from lingo import layers as nn
from lingo.layers.context import apply
from lingo.learner.state import initial_value

X = np.random.default_rng(0).normal(size=[2, 5, 6, 4]).astype(np.float32)


def part(weights: dict, name: str) -> dict:
    """Returns the weights of a child, by their paths in it."""
    return {k.removeprefix(f"{name}/"): v for k, v in weights.items() if k.startswith(f"{name}/")}


@pytest.mark.parametrize(
    ("conv", "fields"), [(nn.Conv2D, {"output_dim": 6}), (nn.DepthwiseConv2D, {"output_dim": 4})]
)
def test_computes_its_parts_in_this_order(conv, fields, draw, traced_flops) -> None:
    norm = nn.GroupNorm.params(num_groups=2)
    layer = nn.ConvNorm.params(
        dim=4, kernel=(3, 2), stride=2, activation="silu", conv=conv, norm=norm, **fields
    ).build()
    weights = draw(layer)
    alone = conv.params(dim=4, kernel=(3, 2), stride=2)
    if conv is nn.Conv2D:
        alone.set(**fields)
    y = apply(alone.build(), part(weights, "conv"), X)[0]
    y = apply(norm.build(dim=fields["output_dim"]), part(weights, "norm"), y)[0].numpy()
    found = apply(layer, weights, X)[0]
    np.testing.assert_allclose(found, y / (1 + np.exp(-y)), rtol=1e-5, atol=1e-6)
    assert layer.output_shape(X.shape) == tuple(found.shape)
    assert layer.flops(X.shape) == traced_flops(layer, X)


@pytest.mark.parametrize("norm", [nn.BatchNorm, nn.GroupNorm.params(num_groups=2)])
@pytest.mark.parametrize("zero_init", [False, True])
def test_gamma_starts_at_zero_if_asked_for(norm, zero_init: bool) -> None:
    layer = nn.ConvNorm.params(dim=4, output_dim=6, norm=norm, zero_init=zero_init).build()
    gamma = initial_value(layer.weights()["norm/gamma"], 0)
    np.testing.assert_array_equal(gamma, np.full(6, 1.0 - zero_init))
