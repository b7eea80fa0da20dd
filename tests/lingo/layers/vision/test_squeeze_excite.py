"""Squeeze-and-excitation, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.layers import SqueezeExcite
from lingo.layers.context import apply

X = np.random.default_rng(0).normal(size=[2, 4, 5, 12]).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_scales_each_channel_by_what_the_whole_image_holds(draw, traced_flops) -> None:
    layer = SqueezeExcite.params(dim=12, block_dim=8).build()
    weights = draw(layer)
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    hidden = X.mean((1, 2)) @ w["reduce/w"] + w["reduce/b"]
    scale = sigmoid(hidden * sigmoid(hidden) @ w["expand/w"] + w["expand/b"])
    y = apply(layer, weights, X)[0]
    np.testing.assert_allclose(y, X * scale[:, None, None], rtol=1e-4, atol=1e-5)
    assert layer.output_shape(X.shape) == X.shape
    assert layer.flops(X.shape) == traced_flops(layer, X) == 2 * 2 * 2 * 12 * 2


@pytest.mark.parametrize(
    ("fields", "reduced"),
    [({}, 3), ({"block_dim": 2}, 1), ({"block_dim": 3}, 1), ({"ratio": 0.5, "block_dim": 5}, 2)],
)
def test_the_reduction_is_counted_from_the_channels_of_the_block(fields, reduced) -> None:
    weights = SqueezeExcite.params(dim=12, **fields).build().weights()
    assert {name: spec.shape for name, spec in weights.items()} == {
        "reduce/w": (12, reduced),
        "reduce/b": (reduced,),
        "expand/w": (reduced, 12),
        "expand/b": (12,),
    }
