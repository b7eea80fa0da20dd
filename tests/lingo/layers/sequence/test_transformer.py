"""One Transformer layer, against its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.context import apply
from lingo.layers.feed_forward import FeedForward
from lingo.layers.layer import Layer
from lingo.layers.norm import LayerNorm, RmsNorm
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.lazy import tf
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


def test_flops_are_those_of_the_traced_graph(traced_flops: Callable) -> None:
    layer = SMALL.build()
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_a_wrong_rate_is_refused() -> None:
    with pytest.raises(ParamError, match=r"dropout_rate=-1\.0 is not in \[0, 1\)"):
        SMALL.copy().set(dropout_rate=-1.0).build()
