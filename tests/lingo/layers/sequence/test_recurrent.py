"""Recurrent networks, against Keras' and against themselves a chunk at a time.

Axes: B batch, T positions, D width, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import Gru, Lstm, RecurrentLayer, Repeat, Stack
from lingo.layers.context import apply

B, T, D, H = 2, 6, 3, 4
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("f")
LAYERS = [
    RecurrentLayer.params(dim=D, network=Lstm),
    RecurrentLayer.params(dim=D, network=Gru.params(hidden_dim=H)),
    Stack.params(layer=RecurrentLayer.params(dim=D), num_layers=2),
    Repeat.params(layer=RecurrentLayer.params(dim=D), num_layers=2),
]
over_layers = pytest.mark.parametrize("params", LAYERS, ids=["lstm", "gru", "stack", "repeat"])


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_lstm_equals_keras(with_weights) -> None:
    layer, weights = with_weights(Lstm.params(dim=D, hidden_dim=H, forget_bias=0.0).build())
    keras = tf.keras.layers.LSTM(H, return_sequences=True)
    keras.build(X.shape)
    flat = [weights["w_input"], weights["w_hidden"], weights["bias"]]
    keras.set_weights([np.reshape(w, [-1, 4 * H]).squeeze() for w in flat])
    close(apply(layer, weights, X)[0], keras(X))


def test_gru_equals_keras(with_weights) -> None:
    layer, weights = with_weights(Gru.params(dim=D, hidden_dim=H).build())
    keras = tf.keras.layers.GRU(H, return_sequences=True)
    keras.build(X.shape)
    hidden_bias = np.concatenate([np.zeros(2 * H), weights["hidden_bias"]])
    biases = np.stack([np.reshape(weights["bias"], -1), hidden_bias])
    matrices = [np.reshape(weights[n], [-1, 3 * H]) for n in ("w_input", "w_hidden")]
    keras.set_weights([*matrices, biases])
    close(apply(layer, weights, X)[0], keras(X))


def test_the_forget_bias_is_added_to_the_forget_gate(draw):
    biased = Lstm.params(dim=D).build()
    plain = Lstm.params(dim=D, forget_bias=0.0).build()
    weights = draw(biased)
    moved = {**weights, "bias": weights["bias"] + np.eye(4, dtype="f")[1][:, None]}
    close(apply(biased, weights, X)[0], apply(plain, moved, X)[0])


def test_the_cell_is_capped(draw: Callable) -> None:
    layer = Lstm.params(dim=D, cell_cap=0.1).build()
    assert np.abs(apply(layer, draw(layer), 100 * X)[0]).max() <= np.tanh(0.1) + 1e-6


@over_layers
def test_chunk_by_chunk_equals_the_whole(params: Params, with_weights) -> None:
    layer, weights = with_weights(params.build())
    caches, outputs, start = layer.empty_caches(batch_size=B, length=T), [], 0
    for size in (3, 1, 2):
        x = tf.constant(X[:, start : start + size])
        y, sides = apply(layer, weights, x, start, method="step", call={"caches": caches})
        caches, start = sides.caches, start + size
        outputs.append(y)
    close(np.concatenate(outputs, 1), apply(layer, weights, tf.constant(X))[0])


@over_layers
def test_packed_documents_read_as_if_alone(params: Params, with_weights) -> None:
    layer, weights = with_weights(params.build())
    positions = np.tile(np.array([0, 1, 0, 1, 2, 3], "i"), [B, 1])
    packed, _ = apply(layer, weights, tf.constant(X), position_ids=tf.constant(positions))
    close(packed[:, :2], apply(layer, weights, tf.constant(X[:, :2]))[0])
    close(packed[:, 2:], apply(layer, weights, tf.constant(X[:, 2:]))[0])


@pytest.mark.parametrize("network", [Lstm, Gru])
def test_flops_are_those_of_both_products(network: type) -> None:
    layer = network.params(dim=D, hidden_dim=H).build()
    gates = network.num_gates
    assert layer.flops([B, T, D]) == 2 * B * T * (D * gates * H + H * gates * H)
    whole = RecurrentLayer.params(dim=D, network=network.params(hidden_dim=H)).build()
    assert whole.flops([B, T, D]) == layer.flops([B, T, D]) + 2 * B * T * H * D
