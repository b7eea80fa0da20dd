"""One Transformer layer, against its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers.context import apply
from lingo.layers.feed_forward import FeedForward
from lingo.layers.inputs import NO_INPUTS, BatchRequirements, CallInputs
from lingo.layers.layer import Layer
from lingo.layers.norm import LayerNorm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.cross_attention import CrossAttention
from lingo.layers.sequence.mask import Prefix
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
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


def test_each_part_adds_to_what_was_there(draw: Callable) -> None:
    layer = SMALL.build()
    weights = draw(layer)
    attention, ffn = ATTENTION.build(dim=8), FeedForward.params(dim=8).build()
    norm, x = RmsNorm.params(dim=8).build(), X
    normed, _ = apply(norm, part(weights, "attention_norm"), x)
    x = x + apply(attention, part(weights, "attention"), normed, segments=SEGMENTS)[0]
    normed, _ = apply(norm, part(weights, "ffn_norm"), x)
    x = x + apply(ffn, part(weights, "ffn"), normed)[0]
    np.testing.assert_allclose(apply(layer, weights, X, segments=SEGMENTS)[0], x, rtol=1e-5)


def test_the_norm_is_built_twice_from_one_template() -> None:
    weights = SMALL.copy().set(norm=LayerNorm).build().weights()
    assert {where for where in weights if "norm" in where} == {
        "attention_norm/scale",
        "attention_norm/bias",
        "ffn_norm/scale",
        "ffn_norm/bias",
    }


def test_step_by_step_equals_the_whole(draw: Callable) -> None:
    layer = SMALL.build()
    weights = draw(layer)
    caches = layer.empty_caches(batch_size=2, length=5)
    outputs = []
    for i in range(5):
        x = X[:, i : i + 1]
        y, sides = apply(layer, weights, x, i, method="step", call={"caches": caches})
        caches = sides.caches
        outputs.append(y)
    whole, _ = apply(layer, weights, X)
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_norms_stand_where_the_placement_says(
    placement: str, parallel: bool, draw: Callable
) -> None:
    layer = SMALL.copy().set(norm_placement=placement, parallel=parallel).build()
    weights = draw(layer)
    parts = {"attention": ATTENTION.build(dim=8), "ffn": FeedForward.params(dim=8).build()}

    def norm(name: str, x: Any) -> Any:
        return apply(RmsNorm.params(dim=8).build(), part(weights, name), x)[0]

    x: Any = tf.constant(X)
    for turn in [["attention", "ffn"]] if parallel else [["attention"], ["ffn"]]:
        of_turn = "norm" if parallel else f"{turn[0]}_norm"
        read = x if placement == "post" else norm(of_turn, x)
        for name in turn:
            change = apply(parts[name], part(weights, name), read)[0]
            x += norm(f"{name}_out_norm", change) if placement == "sandwich" else change
        x = norm(of_turn, x) if placement == "post" else x
    np.testing.assert_allclose(apply(layer, weights, X)[0], x, rtol=1e-4, atol=1e-5)


def test_parts_side_by_side_share_a_norm() -> None:
    weights = SMALL.copy().set(parallel=True).build().weights()
    assert {where for where in weights if "norm" in where} == {"norm/scale"}


def test_a_path_is_dropped_for_a_whole_example(draw: Callable) -> None:
    layer = SMALL.copy().set(attention=Ones, ffn=Ones, drop_path_rate=0.5).build()
    x, call = tf.zeros([64, 5, 8]), TRAINING | {"rows": tf.range(64)}
    y = apply(layer, draw(layer), x, call=call)[0].numpy()
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1, :1], y.shape))
    assert set(np.unique(y)) == {0, 2, 4}


def test_a_feature_is_dropped_at_all_positions(draw: Callable) -> None:
    params = SMALL.copy().set(attention=Ones, ffn=Ones, dropout_rate=0.5, dropout_form="feature")
    layer = params.build()
    y = apply(layer, draw(layer), tf.zeros([2, 5, 8]), call=TRAINING)[0].numpy()
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert set(np.unique(y)) == {0, 2, 4}


MEMORY = np.random.default_rng(1).normal(size=[2, 3, 8]).astype(np.float32)
DECODER = SMALL.copy().set(cross_attention=CrossAttention.params(num_heads=2))


def test_cross_attention_adds_between_the_two(draw: Callable) -> None:
    layer = DECODER.copy().build()
    weights = draw(layer)
    y, _ = apply(layer, weights, X, memory=MEMORY)
    silent = weights | {"ffn/w_out": tf.zeros([32, 8])}
    attended, _ = apply(SMALL.build(), silent, X)
    norm, cross = RmsNorm.params(dim=8).build(), CrossAttention.params(dim=8, num_heads=2).build()
    normed, _ = apply(norm, part(weights, "cross_attention_norm"), attended)
    x = attended + apply(cross, part(weights, "cross_attention"), normed, memory=MEMORY)[0]
    normed, _ = apply(norm, part(weights, "ffn_norm"), x)
    x += apply(FeedForward.params(dim=8).build(), part(weights, "ffn"), normed)[0]
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_decoders_step_with_a_memory_given_once(stack: type[Stack], draw: Callable) -> None:
    layer = stack.params(layer=DECODER, num_layers=2).build()
    weights, segments = draw(layer), np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    caches, outputs = layer.empty_caches(batch_size=2, length=5), []
    for start, stop in [(0, 2), (2, 3), (3, 5)]:
        memory = MEMORY if start == 0 else None
        y, sides = apply(
            layer,
            weights,
            X[:, start:stop],
            start,
            method="step",
            memory=memory,
            memory_segments=segments,
            call={"caches": caches},
        )
        caches = {**caches, **sides.caches}
        outputs.append(y)
    whole, _ = apply(layer, weights, X, memory=MEMORY, memory_segments=segments)
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, rtol=1e-4, atol=1e-5)


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
def test_an_extra_network_adds_after_the_other(
    placement: str, parallel: bool, draw: Callable
) -> None:
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


def test_a_prefix_reaches_the_attention(draw: Callable) -> None:
    layer = SMALL.copy().set(attention=ATTENTION.copy().set(mask=Prefix)).build()
    weights, prefix = draw(layer), np.array([[True, True, False, False, False]] * 2)
    y, _ = apply(layer, weights, X, prefix=prefix)
    assert not np.allclose(y[:, 0], apply(layer, weights, X)[0][:, 0])


def test_a_memory_needs_a_cross_attention_and_the_reverse(draw: Callable) -> None:
    with pytest.raises(ValueError, match="a memory, but cross_attention=None"):
        apply(SMALL.build(), {}, X, memory=MEMORY)
    decoder = DECODER.build()
    with pytest.raises(ValueError, match="cross_attention needs the input `memory`"):
        apply(decoder, draw(decoder), X)


def test_dropout_draws_for_each_part_and_each_example(draw: Callable) -> None:
    layer = SMALL.copy().set(dropout_rate=0.5).build()
    weights = draw(layer)
    whole, _ = apply(layer, weights, X, call=TRAINING)
    assert not np.allclose(whole, apply(layer, weights, X)[0])
    alone, _ = apply(layer, weights, X[1:], call=TRAINING | {"rows": tf.constant([1])})
    np.testing.assert_allclose(alone, whole[1:], rtol=1e-4, atol=1e-5)


class Ones(Layer):
    """Gives ones, whatever it is given."""

    def __call__(self, x: tf.Tensor, **inputs: Any) -> tf.Tensor:
        return tf.ones_like(x)


def test_the_two_parts_have_masks_of_their_own(draw: Callable) -> None:
    layer = SMALL.copy().set(attention=Ones, ffn=Ones, dropout_rate=0.5).build()
    sums, _ = apply(layer, draw(layer), tf.zeros([2, 5, 8]), call=TRAINING)
    np.testing.assert_array_equal(np.unique(sums), [0, 2, 4])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_training_equals_eager_training(jit_compile: bool, draw: Callable) -> None:
    layer = SMALL.copy().set(dropout_rate=0.5).build()
    layer_weights = draw(layer)

    def call(x: tf.Tensor) -> tf.Tensor:
        return apply(layer, layer_weights, x, segments=SEGMENTS, call=TRAINING)[0]

    compiled = tf.function(call, autograph=False, jit_compile=jit_compile)
    np.testing.assert_allclose(compiled(X), call(X), rtol=1e-4, atol=1e-5)


def test_bfloat16_computes_while_float32_stores(draw: Callable) -> None:
    layer = SMALL.copy().set(dtype="bfloat16").build()
    assert apply(layer, draw(layer), X)[0].dtype == tf.bfloat16


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_flops_are_those_of_the_traced_graph(placement: str, traced_flops: Callable) -> None:
    layer = SMALL.copy().set(norm_placement=placement).build()
    assert layer.flops(X.shape) == traced_flops(layer, X)


@pytest.mark.parametrize("field", ["dropout_rate", "drop_path_rate"])
def test_a_wrong_rate_is_refused(field: str) -> None:
    with pytest.raises(ParamError, match=rf"{field}=-1\.0 is not in \[0, 1\)"):
        SMALL.copy().set(**{field: -1.0}).build()
