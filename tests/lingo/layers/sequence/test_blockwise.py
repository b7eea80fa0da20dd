"""Layers whose attention is computed by blocks, against the same layers with all logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo import layers
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.sequence import dot_product
from lingo.layers.sequence.mask import band_of
from lingo.learner.state import initial_value
from lingo.ops import blockwise_attention, random
from lingo.ops.blockwise_attention import BlockSize

B, T, S, D = 2, 7, 6, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, T, D]).astype("f")
MEMORY = RNG.normal(size=[B, S, D]).astype("f")
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1]], "i")
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5, 6]], "i")
DOCUMENTS = {"segments": SEGMENTS, "position_ids": POSITIONS}
PREFIX = POSITIONS < 2
ATTENTION = layers.Attention.params(dim=D, num_heads=4, num_kv_heads=2, dropout_rate=0.3)


@pytest.fixture(autouse=True, params=[(3, 2), (3, 16)], ids=["squares", "rows"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, block = blockwise_attention.attend_blockwise, BlockSize(*request.param)
    monkeypatch.setattr(
        dot_product, "attend_blockwise", lambda *a, **k: attend(*a, **k, block=block)
    )


def compute(params: Params, inputs: dict[str, Any]) -> list[np.ndarray]:
    """Returns the result and the gradients of the input and all weights."""
    layer = params.copy().build()
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    call = {"training": True, "key": random.root_key(3), "rows": tf.constant([4, 9])}
    x, inputs = tf.constant(X), {k: tf.constant(v) for k, v in inputs.items()}
    watched = [x, *weights.values(), *(v for v in inputs.values() if v.dtype.is_floating)]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y, _ = layers.context.apply(layer, weights, x, call=call, **inputs)
        loss = tf.reduce_sum(tf.sin(y))
    return [y.numpy(), *(tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, watched))]


def assert_same(params: Params, inputs: dict[str, Any]) -> None:
    ours = compute(params.copy().set(blockwise=True), inputs)
    whole = compute(params.copy().set(blockwise=False), inputs)
    for a, b in zip(ours, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("documents", [{}, DOCUMENTS], ids=["one", "many"])
@pytest.mark.parametrize(
    "mask",
    [
        layers.Causal,
        layers.Bidirectional,
        layers.LocalWindow.params(window=4, ahead=3),
        layers.Prefix,
    ],
    ids=str,
)
def test_every_mask_is_that_of_all_logits(mask: Any, documents: Any) -> None:
    inputs = documents | ({"prefix": PREFIX} if mask is layers.Prefix else {})
    assert_same(ATTENTION.copy().set(mask=mask, positions=layers.Rotary), inputs)


@pytest.mark.parametrize("mask", [layers.Causal, layers.Bidirectional])
@pytest.mark.parametrize(
    "positions", [layers.Alibi, layers.RelativeBias.params(num_buckets=4, max_distance=3)]
)
def test_every_bias_is_that_of_all_logits(mask: Any, positions: Any) -> None:
    assert_same(ATTENTION.copy().set(mask=mask, positions=positions), DOCUMENTS)


def test_a_shared_table_has_the_gradient_of_all_logits() -> None:
    table = RNG.normal(size=[4, 4]).astype("f")
    bias = layers.RelativeBias.params(num_buckets=4, max_distance=3, shared=True)
    inputs = DOCUMENTS | {"position_table": table}
    assert_same(ATTENTION.copy().set(positions=bias, logit_cap=2.0, qk_norm=layers.RmsNorm), inputs)


@pytest.mark.parametrize("memory_segments", [None, SEGMENTS[:, :S]], ids=["all", "padded"])
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one", "many"])
def test_cross_attention_is_that_of_all_logits(memory_segments: Any, segments: Any) -> None:
    inputs = {"memory": MEMORY, "memory_segments": memory_segments, "segments": segments}
    inputs = {k: v for k, v in inputs.items() if v is not None}
    assert_same(layers.CrossAttention.params(dim=D, num_heads=2, dropout_rate=0.3), inputs)


def test_long_inputs_are_computed_by_blocks_unless_told_otherwise(monkeypatch) -> None:
    monkeypatch.setattr(dot_product, "_MAX_WHOLE_LENGTH", T)
    layer = ATTENTION.build()
    assert not layer.is_blockwise(T, T)
    assert layer.is_blockwise(T + 1, T)
    assert not layer.is_blockwise(None, T)
    assert not ATTENTION.copy().set(blockwise=False).build().is_blockwise(2 * T, T)


class EverySecond(layers.Causal):
    """Sees every second position."""

    def sees(self, query: Any, key: Any, prefix: Any = None) -> Any:
        distance = query[:, :, None] - key[:, None]
        return (distance >= 0) & (distance % 2 == 0)


def test_a_mask_that_changes_what_is_seen_loses_the_band_of_its_parent() -> None:
    assert band_of(layers.Causal.params().build()) is not None
    assert band_of(EverySecond.params().build()) is None
    assert_same(ATTENTION.copy().set(mask=EverySecond), DOCUMENTS)
