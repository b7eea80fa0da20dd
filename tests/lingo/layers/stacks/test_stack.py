"""The plain stack: patterns of layers and what does not make one (numbers: see the scan's)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import (
    Chain,
    Conv2D,
    LayerNorm,
    Linear,
    MaxPool,
    Remat,
    Repeat,
    RmsNorm,
    Stack,
)
from lingo.layers.context import apply
from lingo.layers.layer import Layer

LINEAR = Linear.params(dim=2, output_dim=2)
both = pytest.mark.parametrize("stack", [Stack, Repeat])


def test_layers_of_a_pattern_alternate_and_inherit_from_the_stack() -> None:
    pattern = [Linear.params(), RmsNorm.params()]
    layer = Stack.params(layer=pattern, num_layers=4).build(dim=2, output_dim=2)
    assert {where: spec.shape for where, spec in layer.weights().items()} == {
        "layers/0/w": (2, 2),
        "layers/1/scale": (2,),
        "layers/2/w": (2, 2),
        "layers/3/scale": (2,),
    }


def test_layers_are_called_one_after_the_other(draw: Callable) -> None:
    layer = Stack.params(layer=LINEAR.copy(), num_layers=3).build()
    weights, x = draw(layer), np.ones((1, 1, 2), np.float32)
    expected = x
    for i in range(3):
        expected = expected @ weights[f"layers/{i}/w"].numpy()
    np.testing.assert_allclose(apply(layer, weights, tf.constant(x))[0], expected, rtol=1e-5)


@both
def test_the_result_has_the_shape_of_the_input(stack: type[Stack]) -> None:
    layer = stack.params(layer=LINEAR.copy(), num_layers=2).build()
    assert layer.output_shape([3, 5, 2]) == (3, 5, 2)


@both
def test_flops_are_those_of_all_layers(stack: type[Stack]) -> None:
    layer = stack.params(layer=[LINEAR.copy(), RmsNorm.params()], num_layers=6).build(dim=2)
    assert layer.flops([3, 5, 2]) == 3 * LINEAR.build().flops([3, 5, 2]) > 0


class Flatten(Layer):
    """Makes a vector of an image."""

    def output_shape(self, shape: Any) -> Any:
        return (shape[0], math.prod(shape[1:]))


class MeanPool(Layer):
    """The mean over positions."""

    def output_shape(self, shape: Any) -> Any:
        return (shape[0], shape[-1])


def test_a_chain_passes_widths_to_layers_that_set_none():
    layers = [
        Conv2D.params(dim=3, output_dim=8),
        LayerNorm,
        MaxPool.params(window=(2, 2), stride=2),
        Conv2D.params(output_dim=5),
        Remat.params(layer=Conv2D.params(output_dim=6)),
        MeanPool,
        Linear.params(output_dim=2),
    ]
    chain = Chain.params(layers=layers).build()
    widths = [getattr(layer.p, "dim", None) for layer in chain.layers]
    assert widths == [3, 8, None, 8, None, None, 6]
    assert chain.layers[4].layer.p.dim == 5, "a wrapper passes it on"
    assert chain.output_shape([1, 8, 8, 3]) == (1, 2)


def test_a_chain_passes_no_width_that_depends_on_the_size_of_images():
    layers = [Conv2D.params(dim=3, output_dim=8), Flatten, Linear.params(output_dim=2)]
    with pytest.raises(ParamError, match=r"layers\[2\]: Linear needs dim"):
        Chain.params(layers=layers).build()


def test_a_width_that_is_set_stays():
    layers = [Linear.params(dim=3, output_dim=8), Linear.params(dim=9, output_dim=2)]
    assert Chain.params(layers=layers).build().layers[1].p.dim == 9
