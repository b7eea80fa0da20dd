"""What learned routers compute before they decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import ExpertChoiceRouter, SwitchRouter, context
from lingo.layers.moe.router import Tokens
from lingo.learner.state import initial_value
from lingo.ops import random

B, T, D, E = 2, 4, 6, 3
X = np.random.default_rng(0).normal(size=[B, T, D]).astype("f")
VALID = np.array([[True] * 4, [True, False, True, False]])
LOGITS = np.random.default_rng(1).normal(size=[B, T, E]).astype("f")


def scores(router: SwitchRouter, x: Any, w: Any, **call: Any) -> Any:
    tokens = Tokens(tf.ones(tf.shape(x)[:2], tf.bool), None, T)
    return context.apply(router, {"w": w}, x, tokens, method="scores", call=call)[0]


def test_the_initial_weights_have_a_tenth_of_the_usual_variance() -> None:
    spec = SwitchRouter.params(dim=400, num_experts=50).build().weights()["w"]
    assert spec.axes == ("embed", None)
    assert initial_value(spec, 0).var() == pytest.approx(0.1 / 400, rel=0.05)


def test_inputs_of_lower_precision_are_scored_in_float32(draw: Callable) -> None:
    router = SwitchRouter.params(dim=D, num_experts=E).build()
    w, x = draw(router)["w"], tf.cast(X, tf.bfloat16)
    found = scores(router, x, w)
    exact = tf.cast(x, tf.float32).numpy() @ w.numpy()
    assert found.probabilities.dtype == tf.float32
    np.testing.assert_allclose(found.logits, exact, rtol=1e-5, atol=1e-6)


def test_a_dtype_of_its_own_is_obeyed(draw: Callable) -> None:
    router = SwitchRouter.params(dim=D, num_experts=E, dtype="bfloat16").build()
    w = draw(router)["w"]
    found = scores(router, tf.constant(X), w)
    rounded = tf.cast(found.logits, tf.bfloat16)
    np.testing.assert_array_equal(found.logits, tf.cast(rounded, tf.float32))
    np.testing.assert_array_equal(found.probabilities, tf.cast(tf.nn.softmax(rounded), tf.float32))


def test_jitter_multiplies_each_feature_of_each_token_in_training_alone() -> None:
    router = SwitchRouter.params(dim=D, num_experts=D, jitter=0.25).build()
    call = {"key": random.root_key(0), "rows": tf.range(B)}
    ones = tf.ones([B, T, D])
    jittered = scores(router, ones, tf.eye(D), training=True, **call).logits.numpy()
    assert len(np.unique(jittered)) == B * T * D
    assert 0.75 <= jittered.min() < 0.8 < 1.2 < jittered.max() < 1.25
    plain = scores(router, ones, tf.eye(D), **call).logits
    np.testing.assert_array_equal(plain, ones)


def test_jitter_is_a_function_of_the_row_whatever_the_groups(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E, jitter=0.5).build()
    given = {"capacity": 8, "training": True}
    whole = route(router, LOGITS, group_size=2 * T, **given)
    halves = route(router, LOGITS, group_size=T // 2, **given)
    np.testing.assert_array_equal(whole.gate.ravel(), halves.gate.ravel())


def test_losses_are_means_over_groups_times_the_rows_of_a_group(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E, z_loss=0.5).build()
    square = np.log(np.exp(LOGITS).sum(-1)) ** 2
    for size in (T // 2, T, 2 * T):  # groups of equal numbers of valid tokens
        found = route(router, LOGITS, group_size=size, capacity=1)
        np.testing.assert_allclose(found.sides.losses["moe_z"] / B, 0.5 * square.mean(), rtol=1e-5)
        assert found.mean("moe/z_loss") == pytest.approx(square.mean(), rel=1e-5)


def test_a_coefficient_of_zero_is_no_loss_but_still_a_metric(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E, balance_loss=0.0).build()
    found = route(router, LOGITS, capacity=1)
    assert found.sides.losses == {}
    assert {"moe/balance_loss", "moe/z_loss", "moe/entropy"} <= found.sides.metrics.keys()


def test_entropy_is_a_mean_over_valid_tokens(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E).build()
    valid = np.array([[True, False, False, False], [True, True, False, False]])
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    wanted = -(p * np.log(p)).sum(-1)[valid].mean()
    found = route(router, LOGITS, valid=valid, capacity=1)
    assert found.mean("moe/entropy") == pytest.approx(wanted, rel=1e-5)


def test_drawing_needs_rows() -> None:
    router = SwitchRouter.params(dim=D, num_experts=E, jitter=0.1).build()
    with pytest.raises(RuntimeError, match="SwitchRouter: a router that draws needs the rows"):
        scores(router, tf.constant(X), tf.ones([D, E]), training=True, key=random.root_key(0))


@pytest.mark.parametrize("capacity", [1, 3, T])
def test_each_expert_takes_the_tokens_that_want_it_most(capacity: int, route: Callable) -> None:
    router = ExpertChoiceRouter.params(dim=E, num_experts=E).build()
    found = route(router, LOGITS, valid=VALID, capacity=capacity)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    wanted = np.zeros_like(p)
    for g in range(B):
        for e in range(E):
            best = sorted(np.flatnonzero(VALID[g]), key=lambda s: -p[g, s, e])[:capacity]
            wanted[g, best, e] = p[g, best, e]
    np.testing.assert_allclose(found.gates, wanted, rtol=1e-5)


def test_loads_are_equal_and_no_loss_has_to_make_them_so(route: Callable) -> None:
    router = ExpertChoiceRouter.params(dim=E, num_experts=E).build()
    found = route(router, LOGITS, capacity=3)
    np.testing.assert_array_equal(found.sides.batch_statistics["load"]["sum"], [6, 6, 6])
    assert found.sides.losses == {}
    assert found.mean("moe/max_load") == 1.0


def test_tokens_that_no_expert_takes_count_as_dropped(route: Callable) -> None:
    router = ExpertChoiceRouter.params(dim=2, num_experts=2).build()
    logits = np.array([[[3, 0], [0, 3], [0, 0], [0, 0]]])
    assert route(router, logits, capacity=1).mean("moe/dropped_fraction") == 0.5
