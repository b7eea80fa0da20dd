"""Causal self-attention: against NumPy and Keras, packed and alone, at once and step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.layers.context import apply
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.positions import RelativeBias, Rotary
from lingo.lazy import tf
from lingo.ops import random

X = np.random.default_rng(0).normal(size=[2, 6, 8]).astype(np.float32)  # [B, T, D]
SMALL = Attention.params(dim=8, num_heads=2)
POSITIONS = [None, Rotary, RelativeBias.params(num_buckets=4, max_distance=5)]
TRAINING = {"training": True, "key": random.root_key(0), "rows": tf.range(2)}


def small(positions: Any) -> Attention:
    return SMALL.copy().set(positions=positions).build()


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def steps(layer: Any, weights: dict[str, Any], x: np.ndarray, **inputs: Any) -> np.ndarray:
    """Calls `step` for each position, with the caches that the one before handed out."""
    caches = layer.empty_caches(batch_size=len(x), length=x.shape[1])
    outputs = []
    for i in range(x.shape[1]):
        now = {name: value[:, i : i + 1] for name, value in inputs.items()}
        y, sides = apply(
            layer, weights, x[:, i : i + 1], i, method="step", call={"caches": caches}, **now
        )
        caches = sides.caches
        outputs.append(y)
    return np.concatenate(outputs, axis=1)


def test_equals_numpy_one_query_at_a_time(draw: Callable) -> None:
    layer = small(None)
    weights = draw(layer)
    wq, wk, wv, wo = (weights[f"w_{n}"].numpy() for n in ("query", "key", "value", "output"))
    expected = np.zeros_like(X)
    for b, t, n in np.ndindex(2, 6, 2):
        past = X[b, : t + 1]
        scores = past @ wk[:, n] @ (X[b, t] @ wq[:, n]) / np.sqrt(4)
        average = np.exp(scores) / np.exp(scores).sum() @ (past @ wv[:, n])
        expected[b, t] += average @ wo[n]
    close(apply(layer, weights, X)[0], expected)


def test_equals_keras(draw: Callable) -> None:
    layer = SMALL.copy().set(head_dim=3).build()
    weights, oracle = draw(layer), keras.layers.MultiHeadAttention(2, 3, use_bias=False)
    oracle.build(X.shape, X.shape)
    oracle.set_weights([weights[f"w_{n}"] for n in ("query", "key", "value", "output")])
    close(apply(layer, weights, X)[0], oracle(X, X, use_causal_mask=True))


@pytest.mark.parametrize("positions", POSITIONS)
def test_causal_output_ignores_later_positions(positions: Any, draw: Callable) -> None:
    layer = small(positions)
    weights = draw(layer)
    close(apply(layer, weights, X)[0][:, :4], apply(layer, weights, X[:, :4])[0])


@pytest.mark.parametrize("positions", POSITIONS)
def test_two_documents_in_a_row_see_what_they_see_alone(positions: Any, draw: Callable) -> None:
    layer = small(positions)
    weights = draw(layer)
    packed, _ = apply(
        layer,
        weights,
        X,
        segments=np.array([[1, 1, 2, 2, 2, 0]] * 2, np.int32),
        positions=np.array([[0, 1, 0, 1, 2, 0]] * 2, np.int32),
    )
    close(packed[:, :2], apply(layer, weights, X[:, :2])[0])
    close(packed[:, 2:5], apply(layer, weights, X[:, 2:5])[0])
    assert np.isfinite(packed).all()


@pytest.mark.parametrize("positions", POSITIONS[1:])
def test_positions_matter_only_by_their_differences(positions: Any, draw: Callable) -> None:
    layer = small(positions)
    weights, numbers = draw(layer), np.arange(6, dtype=np.int32)[None]
    expected, _ = apply(layer, weights, X)
    close(apply(layer, weights, X, positions=numbers + 100)[0], expected)
    assert not np.allclose(apply(layer, weights, X, positions=2 * numbers)[0], expected)


@pytest.mark.parametrize("positions", POSITIONS)
def test_step_by_step_equals_the_whole(positions: Any, draw: Callable) -> None:
    layer = small(positions)
    weights = draw(layer)
    close(steps(layer, weights, X), apply(layer, weights, X)[0])


@pytest.mark.parametrize("positions", POSITIONS)
def test_steps_may_start_from_another_position(positions: Any, draw: Callable) -> None:
    layer = small(positions)
    weights, numbers = draw(layer), np.array([np.arange(6), np.arange(6) + 5], np.int32)
    whole, _ = apply(layer, weights, X, positions=numbers)
    close(steps(layer, weights, X, positions=numbers), whole)


def test_caches_have_the_type_of_the_computation() -> None:
    caches = SMALL.copy().set(dtype="bfloat16").build().caches()
    assert {where: (spec.shape, spec.dtype) for where, spec in caches.items()} == {
        "key": ((2, 4), "bfloat16"),
        "value": ((2, 4), "bfloat16"),
    }


def test_lengths_may_be_known_only_at_run_time(draw: Callable) -> None:
    layer = small(POSITIONS[2])
    weights = draw(layer)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None, 8])])
    def call(x: tf.Tensor) -> tf.Tensor:
        return apply(layer, weights, x)[0]

    close(call(X), apply(layer, weights, X)[0])


def test_dropout_thins_the_weights_in_training_only(draw: Callable) -> None:
    layer = SMALL.copy().set(dropout_rate=0.5).build()
    weights = draw(layer)
    expected, _ = apply(small(None), weights, X)
    np.testing.assert_array_equal(apply(layer, weights, X)[0], expected)
    assert not np.allclose(apply(layer, weights, X, call=TRAINING)[0], expected)


def test_bfloat16_computes_while_float32_stores(draw: Callable) -> None:
    layer = SMALL.copy().set(positions=Rotary, dtype="bfloat16").build()
    y, _ = apply(layer, draw(layer), X)
    assert y.dtype == tf.bfloat16
    expected, _ = apply(small(Rotary), draw(layer), X)
    np.testing.assert_allclose(tf.cast(y, tf.float32), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("head_dim", [None, 3])
def test_flops_are_those_of_the_traced_graph(head_dim: int | None, traced_flops: Callable) -> None:
    layer = SMALL.copy().set(head_dim=head_dim, positions=RelativeBias).build()
    assert layer.flops(X.shape) == traced_flops(layer, X)


def test_heads_share_the_fan_in_of_the_output() -> None:
    assert SMALL.copy().set(head_dim=3).build().weights()["w_output"].fan_in == 6


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SMALL.copy().set(num_heads=3), r"dim=8 is not a multiple of num_heads=3; set head_dim"),
        (SMALL.copy().set(num_heads=0), r"num_heads=0 is not positive"),
        (SMALL.copy().set(dropout_rate=1.0), r"dropout_rate=1\.0 is not in \[0, 1\)"),
    ],
)
def test_what_does_not_go_together_is_refused(params: Params, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        params.build()


def test_only_positions_take_the_place_of_positions() -> None:
    with pytest.raises(ParamError, match="AttentionPositions or None"):
        SMALL.copy().positions = Attention
