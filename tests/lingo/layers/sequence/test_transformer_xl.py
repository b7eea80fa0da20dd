"""Transformer-XL's relative attention: published logits, slow NumPy, all ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import Attention, Bidirectional, Causal, LocalWindow, TransformerXl
from lingo.layers.context import apply
from lingo.layers.sequence.transformer_xl import shift_rows
from tests.lingo.layers.sequence.test_attention import in_chunks

X = np.random.default_rng(0).normal(size=[2, 7, 8]).astype(np.float32)  # [B, T, D]
MASKS: dict[str, Any] = {
    "full": Bidirectional,
    "causal": Causal,
    "left": LocalWindow.params(window=2),
    "both": LocalWindow.params(window=2, ahead=1),
}


def small(mask: Any = Bidirectional, **fields: Any) -> Any:
    return Attention.params(
        dim=8, num_heads=2, mask=mask, positions=TransformerXl, use_bias=True, **fields
    ).build()


def slow(weights: Any, x: np.ndarray, mask: Any, positions: np.ndarray) -> np.ndarray:
    """Computes the attention of one example [T, D], query by query and head by head."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    query, key, value = (
        np.einsum("td,dnh->tnh", x, w[f"w_{name}"]) + w[f"b_{name}"]
        for name in ("query", "key", "value")
    )
    frequencies = 10_000.0 ** (-np.arange(4) / 4)
    u, v = w["positions/bias_content"], w["positions/bias_position"]
    sees = mask.build().sees(np.arange(len(x))[None], np.arange(len(x))[None])
    y = np.zeros_like(query)
    for i in range(len(x)):
        for n in range(2):
            logits = np.full(len(x), -np.inf)
            for j in range(len(x)):
                angles = (positions[i] - positions[j]) * frequencies
                waves = np.concatenate([np.sin(angles), np.cos(angles)])
                vector = waves @ w["positions/w_position"][:, n]
                logit = (query[i, n] + u[n]) @ key[j, n] + (query[i, n] + v[n]) @ vector
                if sees is None or sees[0, i, j]:
                    logits[j] = logit / 2  # sqrt(H)
            softmax = np.exp(logits - logits.max())
            y[i, n] = softmax / softmax.sum() @ value[:, n]
    return np.einsum("tnh,nhd->td", y, w["w_output"]) + w["b_output"]


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_logits_of_two_positions_are_those_of_the_formula() -> None:
    query = np.array([[[[1, 0], [0.5, -1]]]], "f")
    key = np.array([[0.2, 1], [-1, 0.5]], "f")
    u, v = np.array([0.1, -0.2], "f"), np.array([0.3, 0.4], "f")
    vectors = np.array([[-0.5, 0.5], [0, 1], [1, 0]], "f")  # of the distances 1, 0 and -1
    by_distance = tf.constant((query + v) @ vectors.T)
    logits = (query + u) @ key.T + shift_rows(by_distance, 2).numpy()
    np.testing.assert_allclose(logits[0, 0], [[0.42, 0.10], [-1.78, -1.80]], atol=1e-6)


@pytest.mark.parametrize("name", MASKS)
def test_attention_is_that_of_numpy(name: str, draw: Callable) -> None:
    layer = small(MASKS[name])
    weights, places = draw(layer), np.arange(7)
    mask = MASKS[name] if hasattr(MASKS[name], "copy") else MASKS[name].params()
    expected = np.stack([slow(weights, x, mask, places) for x in X])
    close(apply(layer, weights, X)[0], expected)
    unknown = tf.function(
        lambda x: apply(layer, weights, x)[0], input_signature=[tf.TensorSpec([None, None, 8])]
    )
    close(unknown(X), expected)


def test_positions_of_packed_documents_are_their_own(draw: Callable) -> None:
    layer = small()
    weights = draw(layer)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2]] * 2, "i")
    ids = np.array([[0, 1, 2, 0, 1, 2, 3]] * 2, "i")
    both = apply(layer, weights, X, segments=segments, position_ids=ids)[0]
    close(both[:, :3], apply(layer, weights, X[:, :3])[0])
    close(both[:, 3:], apply(layer, weights, X[:, 3:])[0])


@pytest.mark.parametrize("name", ["causal", "left"])
def test_steps_compute_what_the_whole_does(name: str, draw: Callable) -> None:
    layer = small(MASKS[name])
    weights = draw(layer)
    whole, _ = apply(layer, weights, X)
    for sizes in ([1, 2, 4], [3, 4]):
        close(in_chunks(layer, weights, X, sizes), whole)


@pytest.mark.parametrize("fields", [{}, {"num_kv_heads": 1}, {"mask": Causal}])
def test_blocks_of_logits_give_the_result_and_gradients_of_all(
    fields: dict[str, Any], draw: Callable
) -> None:
    results = []
    weights = draw(small(**fields))
    for blockwise in (False, True):
        layer = small(**fields, blockwise=blockwise)
        with tf.GradientTape() as tape:
            tape.watch(values := {k: tf.constant(v) for k, v in weights.items()})
            loss = tf.reduce_sum(apply(layer, values, X)[0] ** 2)
        results.append((loss, tape.gradient(loss, values)))
    close(results[1][0], results[0][0])
    for name, gradient in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], gradient, rtol=1e-3, atol=1e-4)


def test_a_cap_of_a_part_of_the_logits_is_refused() -> None:
    with pytest.raises(ParamError, match=r"logit_cap=2.0 with positions=TransformerXl"):
        small(logit_cap=2.0)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ParamError, match="dim=7 is odd"):
        TransformerXl.params(dim=7, num_heads=1, head_dim=2).build()
