"""The feed-forward network, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.context import apply
from lingo.layers.feed_forward import FeedForward
from lingo.learner.state import initial_value
from lingo.ops import random
from lingo.ops.activations import activate

X = np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)
SMALL = FeedForward.params(dim=4, hidden_dim=6)
TRAINING = {"training": True, "key": random.root_key(0), "rows": tf.range(2)}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_numpy(gated: bool, use_bias: bool, draw: Callable) -> None:
    layer = SMALL.copy().set(activation="gelu", gated=gated, use_bias=use_bias).build()
    weights = draw(layer)
    w = {where: value.numpy() for where, value in weights.items()}
    hidden = X @ w["w_in"] + w.get("b_in", 0)
    if gated:
        hidden *= activate(tf.constant(X @ w["w_gate"] + w.get("b_gate", 0)), "gelu").numpy()
    else:
        hidden = activate(tf.constant(hidden), "gelu").numpy()
    expected = hidden @ w["w_out"] + w.get("b_out", 0)
    np.testing.assert_allclose(apply(layer, weights, X)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_a_hidden_bias_acts_on_what_the_last_product_reads(gated: bool, draw: Callable) -> None:
    plain = SMALL.copy().set(gated=gated)
    weights = draw(plain.copy().set(hidden_bias="additive").build())
    b, w_out = weights["b_hidden"].numpy(), weights["w_out"].numpy()

    def output(params: Params, **changed: np.ndarray) -> np.ndarray:
        layer = params.build()
        return apply(layer, {k: (weights | changed)[k] for k in layer.weights()}, X)[0].numpy()

    added = output(plain.copy().set(hidden_bias="additive"))
    np.testing.assert_allclose(added, output(plain) + b @ w_out, rtol=1e-4, atol=1e-5)
    multiplied = output(plain.copy().set(hidden_bias="multiplicative"))
    np.testing.assert_allclose(
        multiplied, output(plain, w_out=b[:, None] * w_out), rtol=1e-4, atol=1e-5
    )


def test_a_hidden_bias_does_nothing_at_first() -> None:
    for form, start in (("additive", 0.0), ("multiplicative", 1.0)):
        spec = SMALL.copy().set(hidden_bias=form).build().weights()["b_hidden"]
        assert spec.shape == (6,)
        np.testing.assert_array_equal(initial_value(spec, 0), np.full(6, start))


def test_axes_split_the_hidden_width_alone() -> None:
    weights = SMALL.copy().set(gated=True, use_bias=True).build().weights()
    assert {where: spec.axes for where, spec in weights.items()} == {
        "w_in": ("embed", "mlp"),
        "b_in": ("mlp",),
        "w_gate": ("embed", "mlp"),
        "b_gate": ("mlp",),
        "w_out": ("mlp", "embed"),
        "b_out": ("embed",),
    }


def test_a_feature_is_dropped_at_all_positions_in_training_only(draw: Callable) -> None:
    layer = (
        SMALL.copy().set(activation="identity", dropout_rate=0.5, dropout_form="feature").build()
    )
    weights = draw(layer)
    x = np.repeat(X[:, :1], 3, axis=1)  # the same at all positions
    y = apply(layer, weights, x, call=TRAINING)[0].numpy()
    np.testing.assert_allclose(y, np.repeat(y[:, :1], 3, axis=1), rtol=1e-5)
    plain = SMALL.copy().set(activation="identity").build()
    np.testing.assert_array_equal(apply(layer, weights, x)[0], apply(plain, weights, x)[0])
    assert not np.allclose(y, apply(layer, weights, x)[0])


@pytest.mark.parametrize("gated", [False, True])
def test_flops_are_those_of_the_traced_graph(gated: bool, traced_flops: Callable) -> None:
    layer = SMALL.copy().set(gated=gated).build()
    products = 3 if gated else 2
    assert layer.flops(X.shape) == traced_flops(layer, X) == products * 2 * 6 * 4 * 6
