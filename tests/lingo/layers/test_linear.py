"""A matrix product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.layers.context import apply
from lingo.layers.linear import Linear

X = np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)


@pytest.mark.parametrize("leading", [(6,), (2, 3), (1, 2, 3)])
def test_the_last_axis_is_mapped_whatever_stands_before(draw, leading):
    layer = Linear.params(dim=4, output_dim=5, use_bias=True).build()
    weights, x = draw(layer), X.reshape(*leading, 4)
    y, _ = apply(layer, weights, x)
    np.testing.assert_allclose(y, x @ weights["w"].numpy() + weights["b"].numpy(), rtol=1e-5)


def test_axes_are_those_given() -> None:
    layer = Linear.params(dim=4, output_dim=5, use_bias=True, axes=(None, "vocab")).build()
    assert {where: w.axes for where, w in layer.weights().items()} == {
        "w": (None, "vocab"),
        "b": ("vocab",),
    }


def test_flops_are_those_of_the_traced_graph(traced_flops: Callable) -> None:
    layer = Linear.params(dim=4, output_dim=5, use_bias=True).build()
    assert layer.flops(X.shape) == traced_flops(layer, X) == 2 * 6 * 4 * 5
