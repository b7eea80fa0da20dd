"""Cross attention: against Keras, over packed and padded memories, from cached keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import CrossAttention, RmsNorm
from lingo.layers.context import apply

RNG = np.random.default_rng(0)
X = RNG.normal(size=[2, 4, 8]).astype(np.float32)  # [B, T, D]
MEMORY = RNG.normal(size=[2, 5, 6]).astype(np.float32)  # [B, S, width]
SMALL = CrossAttention.params(dim=8, num_heads=2, memory_dim=6)
FORMS: list[dict[str, Any]] = [
    {},
    {"num_heads": 4, "num_kv_heads": 2},
    {"qk_norm": RmsNorm, "use_bias": True, "logit_cap": 3.0},
]


def small(**values: Any) -> Any:
    return SMALL.copy().set(**values).build()


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_equals_keras(draw: Callable) -> None:
    layer = small(head_dim=3)
    weights, oracle = draw(layer), keras.layers.MultiHeadAttention(2, 3, use_bias=False)
    oracle.build(X.shape, MEMORY.shape)
    oracle.set_weights([weights[f"w_{n}"] for n in ("query", "key", "value", "output")])
    close(apply(layer, weights, X, memory=MEMORY)[0], oracle(X, MEMORY))


def test_the_memory_has_the_width_of_the_input_unless_given() -> None:
    assert small(memory_dim=None).weights()["w_key"].shape == (8, 2, 4)
    assert small().weights()["w_key"].shape == (6, 2, 4)


def test_padding_of_the_memory_is_not_seen(with_weights) -> None:
    layer, weights = with_weights(small())
    padded, _ = apply(
        layer, weights, X, memory=MEMORY, memory_segments=np.array([[1, 1, 1, 0, 0]] * 2)
    )
    close(padded, apply(layer, weights, X, memory=MEMORY[:, :3])[0])


def test_two_documents_in_a_row_see_their_own_memories(with_weights) -> None:
    layer, weights = with_weights(small())
    packed, _ = apply(
        layer,
        weights,
        X,
        memory=MEMORY,
        segments=np.array([[1, 2, 2, 0]] * 2),
        memory_segments=np.array([[1, 1, 2, 2, 2]] * 2),
    )
    close(packed[:, :1], apply(layer, weights, X[:, :1], memory=MEMORY[:, :2])[0])
    close(packed[:, 1:3], apply(layer, weights, X[:, 1:3], memory=MEMORY[:, 2:])[0])
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("values", FORMS)
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 1, 1], [4]])
def test_chunk_by_chunk_equals_the_whole(values, sizes, draw):
    layer, segments = small(**values), np.array([[1] * 5, [1, 1, 1, 0, 0]])
    weights, caches = draw(layer), layer.empty_caches(batch_size=2, length=4)
    outputs, start = [], 0
    for size in sizes:
        memory = MEMORY if start == 0 else None  # the keys of later steps are remembered
        y, sides = apply(
            layer,
            weights,
            X[:, start : start + size],
            start,
            method="step",
            memory=memory,
            memory_segments=segments,
            call={"caches": caches},
        )
        caches = {**caches, **sides.caches}
        outputs.append(y)
        start += size
    whole, _ = apply(layer, weights, X, memory=MEMORY, memory_segments=segments)
    close(np.concatenate(outputs, axis=1), whole)


def test_later_steps_hand_out_nothing(with_weights) -> None:
    layer, weights = with_weights(small())
    _, first = apply(layer, weights, X[:, :1], 0, method="step", memory=MEMORY)
    assert first.caches["memory_key"].shape == (2, 2, 5, 4)
    call = {"caches": first.caches}
    _, second = apply(layer, weights, X[:, 1:2], 1, method="step", call=call)
    assert second.caches == {}


def test_flops_are_those_of_the_traced_graph(draw: Callable, traced_flops: Callable) -> None:
    layer = small(num_heads=4, num_kv_heads=2, memory_dim=None)
    memory = np.zeros([2, 5, 8], np.float32)

    class Fixed:
        """The layer, with a memory."""

        weights = staticmethod(layer.weights)

        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return layer(x, memory=memory)

    assert layer.flops(X.shape, memory_length=5) == traced_flops(Fixed(), X)
    assert layer.flops([2, 5, 8]) == layer.flops([2, 5, 8], memory_length=5)
