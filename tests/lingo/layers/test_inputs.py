"""The further inputs of a layer: one tuple, also by keywords, never by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Layer, Linear, Remat, Repeat, Stack
from lingo.layers.context import apply
from lingo.layers.inputs import NO_INPUTS, BatchRequirements, CallInputs, needs_token_ids

X = tf.zeros([2, 3, 1])
IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


class Ids(Layer):
    """Adds token ids."""

    positionwise = True

    def batch_requirements(self, shape: Any = (None, None)) -> BatchRequirements:
        return BatchRequirements(token_ids=True)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return x + tf.cast(inputs.token_ids, tf.float32)[..., None]


@pytest.mark.parametrize("inputs", [{"token_ids": IDS}, {"inputs": CallInputs(token_ids=IDS)}])
@pytest.mark.parametrize("stack", [Stack, Repeat])
@pytest.mark.parametrize("method", ["__call__", "step"])
def test_every_layer_of_a_stack_gets_them(method: str, stack: Any, inputs: Any) -> None:
    layer = stack.params(layer=Remat.params(layer=Ids), num_layers=2).build()
    index = [0] if method == "step" else []
    y, _ = apply(layer, {}, X, *index, method=method, **inputs)
    np.testing.assert_array_equal(y[..., 0], 2 * IDS)


def test_a_layer_that_needs_none_gets_none() -> None:
    layer, weights = Linear.params(dim=1, output_dim=1).build(), {"w": tf.ones([1, 1])}
    np.testing.assert_array_equal(apply(layer, weights, X, token_ids=IDS)[0], X)


def test_only_known_inputs_are_taken_and_only_by_name() -> None:
    layer = Ids.params().build()
    with pytest.raises(TypeError, match="tokens"):
        apply(layer, {}, X, tokens=IDS)
    with pytest.raises(TypeError, match="positional"):
        apply(layer, {}, X, CallInputs(token_ids=IDS))


def test_a_tree_needs_what_a_layer_in_it_needs() -> None:
    assert needs_token_ids(Stack.params(layer=Ids).build())
    assert not needs_token_ids(Linear.params(dim=1, output_dim=1).build())


def test_inputs_by_name_are_those_that_are_given() -> None:
    assert CallInputs(segments=1, memory=2).by_name() == {"memory": 2, "segments": 1}
