"""The plain stack: patterns of layers and what does not make one (numbers: see the scan's)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Linear, Repeat, RmsNorm, Stack
from lingo.layers.context import apply

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
