"""One Transformer layer, against its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import Attention, FeedForward, Layer, Remat, Repeat, RmsNorm, Stack
from lingo.layers.context import apply
from lingo.layers.inputs import NO_INPUTS, BatchRequirements, CallInputs
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.ops import random

X = np.random.default_rng(0).normal(size=[2, 5, 8]).astype(np.float32)
ATTENTION = Attention.params(num_heads=2)
SMALL = TransformerLayer.params(dim=8, attention=ATTENTION)
SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]], np.int32)
TRAINING = {"training": True, "key": random.root_key(0), "rows": tf.range(2)}


def part(weights: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the weights of one child, named as if it were alone."""
    return {
        where.removeprefix(f"{name}/"): value
        for where, value in weights.items()
        if where.startswith(f"{name}/")
    }


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_norms_are_where_the_placement_says(placement: str, parallel: bool, draw: Callable) -> None:
    layer = SMALL.copy().set(norm_placement=placement, parallel=parallel).build()
    weights = draw(layer)
    parts = {"attention": ATTENTION.build(dim=8), "ffn": FeedForward.params(dim=8).build()}

    def norm(name: str, x: Any) -> Any:
        return apply(RmsNorm.params(dim=8).build(), part(weights, name), x)[0]

    x: Any = tf.constant(X)
    groups = {"norm": ["attention", "ffn"]} if parallel else {f"{n}_norm": [n] for n in parts}
    for norm_name, names in groups.items():
        read = x if placement == "post" else norm(norm_name, x)
        for name in names:
            change = apply(parts[name], part(weights, name), read, segments=SEGMENTS)[0]
            x += norm(f"{name}_out_norm", change) if placement == "sandwich" else change
        x = norm(norm_name, x) if placement == "post" else x
    y, _ = apply(layer, weights, X, segments=SEGMENTS)
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)
    assert len([w for w in weights if "_out_" not in w and "norm" in w]) == len(groups)


@pytest.mark.parametrize(
    ("fields", "axes"),
    [({"drop_path_rate": 0.5}, (1, 2)), ({"dropout_rate": 0.5, "dropout_form": "feature"}, (1,))],
)
def test_what_each_part_adds_is_dropped_by_itself(fields, axes, draw):
    layer = SMALL.copy().set(attention=Ones, ffn=Ones, **fields).build()
    x, call = tf.zeros([64, 5, 8]), TRAINING | {"rows": tf.range(64)}
    y = apply(layer, draw(layer), x, call=call)[0].numpy()
    np.testing.assert_array_equal(y, np.broadcast_to(y.min(axis=axes, keepdims=True), y.shape))
    assert set(np.unique(y)) == {0, 2, 4}


MEMORY = np.random.default_rng(1).normal(size=[2, 3, 8]).astype(np.float32)
DECODER = SMALL.copy().set(cross_attention=CrossAttention.params(num_heads=2))


def test_cross_attention_adds_between_the_two(with_weights) -> None:
    layer, weights = with_weights(DECODER.copy().build())
    y, _ = apply(layer, weights, X, memory=MEMORY)
    silent = weights | {"ffn/w_out": tf.zeros([32, 8])}
    attended, _ = apply(SMALL.build(), silent, X)
    norm, cross = RmsNorm.params(dim=8).build(), CrossAttention.params(dim=8, num_heads=2).build()
    normed, _ = apply(norm, part(weights, "cross_attention_norm"), attended)
    x = attended + apply(cross, part(weights, "cross_attention"), normed, memory=MEMORY)[0]
    normed, _ = apply(norm, part(weights, "ffn_norm"), x)
    x += apply(FeedForward.params(dim=8).build(), part(weights, "ffn"), normed)[0]
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrapper", [Stack, Repeat, Remat])
def test_a_gradient_reaches_the_memory(wrapper: type[Layer], draw: Callable) -> None:
    plain = Stack.params(layer=DECODER, num_layers=2)
    params = plain if wrapper is Stack else Repeat.params(layer=DECODER, num_layers=2)
    params = Remat.params(layer=params) if wrapper is Remat else params

    def gradient(params: Params) -> Any:
        layer = params.build()
        weights = {k: tf.fill(v.program_shape, 0.1) for k, v in layer.weights().items()}
        with tf.GradientTape() as tape:
            memory = tf.constant(MEMORY)
            tape.watch(memory)
            y = tf.reduce_sum(tf.sin(apply(layer, weights, X, memory=memory)[0]))
        return tape.gradient(y, memory)

    np.testing.assert_allclose(gradient(params), gradient(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("placement", "parallel"),
    [("pre", False), ("post", False), ("sandwich", False), ("pre", True), ("sandwich", True)],
)
def test_an_extra_network_adds_after_the_other(placement, parallel, draw):
    params = DECODER.copy().set(norm_placement=placement, parallel=parallel)
    plain, layer = params.build(), params.copy().set(extra_ffn=FeedForward).build()
    weights = draw(layer)
    y, _ = apply(plain, {k: weights[k] for k in plain.weights()}, X, memory=MEMORY)

    def norm(name: str, x: Any) -> Any:
        return apply(RmsNorm.params(dim=8).build(), part(weights, name), x)[0]

    if placement == "post":
        read = y
    else:
        read = norm("norm", X) if parallel else norm("extra_ffn_norm", y)
    change, _ = apply(FeedForward.params(dim=8).build(), part(weights, "extra_ffn"), read)
    if placement == "sandwich":
        change = norm("extra_ffn_out_norm", change)
    expected = norm("extra_ffn_norm", y + change) if placement == "post" else y + change
    found, _ = apply(layer, weights, X, memory=MEMORY)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Ids(FeedForward):
    """Adds the number of each token to what it computes."""

    positionwise = True

    def batch_requirements(self, shape: Any = (None, None)) -> BatchRequirements:
        return BatchRequirements(token_ids=True)

    def __call__(self, x: tf.Tensor, *, inputs: CallInputs = NO_INPUTS) -> tf.Tensor:
        return super().__call__(x) + tf.cast(inputs.token_ids, tf.float32)[:, :, None]


def test_tokens_reach_the_networks_that_read_them(draw: Callable) -> None:
    layer = SMALL.copy().set(extra_ffn=Remat.params(layer=Ids)).build()
    plain, weights = SMALL.copy().set(extra_ffn=FeedForward).build(), draw(layer)
    tokens = np.array([[3, 1, 2, 5, 4]] * 2, np.int32)
    expected = apply(plain, weights, X)[0] + tokens[:, :, None]
    np.testing.assert_allclose(apply(layer, weights, X, token_ids=tokens)[0], expected, atol=1e-5)
    call = {"caches": layer.empty_caches(batch_size=2, length=5)}
    y, _ = apply(layer, weights, X, 0, method="step", token_ids=tokens, call=call)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_a_memory_needs_a_cross_attention_and_the_reverse(draw: Callable) -> None:
    with pytest.raises(ValueError, match="a memory, but cross_attention=None"):
        apply(SMALL.build(), {}, X, memory=MEMORY)
    decoder = DECODER.build()
    with pytest.raises(ValueError, match="cross_attention needs the input `memory`"):
        apply(decoder, draw(decoder), X)


class Ones(Layer):
    """Gives ones, whatever it is given."""

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        return tf.ones_like(x)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_flops_are_those_of_the_traced_graph(placement: str, traced_flops: Callable) -> None:
    layer = SMALL.copy().set(norm_placement=placement).build()
    assert layer.flops(X.shape) == traced_flops(layer, X)
