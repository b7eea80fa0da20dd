"""GShard's algorithm 1, against its loops over tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from lingo.layers.moe.token_choice import GShardRouter

B, S, E = 3, 12, 4
LOGITS = 2 * np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
PUBLISHED = [[2, 1, 0], [3, 0.5, 0], [2.5, 0, 1], [0, 2, 1], [1, 0, 2], [1.5, 1, 0.5]]


class Gated(NamedTuple):
    """What algorithm 1 gives for a group: gates [S, E], counts [E], the auxiliary loss."""

    gates: np.ndarray
    counts: np.ndarray
    loss: float


def algorithm_1(logits: np.ndarray, rnd: np.ndarray, capacity: int) -> Gated:
    """Lepikhin et al. 2020, algorithm 1, line by line."""
    num_tokens, num_experts = logits.shape
    g = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    m = g.mean(0)
    c, gates = np.zeros(num_experts, int), np.zeros_like(g)
    for s in range(num_tokens):
        e1, e2 = np.argsort(-g[s], kind="stable")[:2]
        g1 = g[s, e1] / (g[s, e1] + g[s, e2])
        if c[e1] < capacity:
            gates[s, e1] = g1
        c[e1] += 1
    loss = sum(c[e] / num_tokens * m[e] for e in range(num_experts)) / num_experts
    for s in range(num_tokens):
        e1, e2 = np.argsort(-g[s], kind="stable")[:2]
        g2 = g[s, e2] / (g[s, e1] + g[s, e2])
        if c[e2] < capacity and 2 * g2 > rnd[s]:
            gates[s, e2] = g2
        c[e2] += 1
    return Gated(gates, c, loss)


def test_the_published_example(route: Callable) -> None:
    router = GShardRouter.params(dim=3, num_experts=3).build()
    found = route(router, np.array([PUBLISHED]), capacity=4)
    wanted = [
        [0.731059, 0.268941, 0],
        [0.924142, 0.075858, 0],
        [0.817574, 0, 0.182426],
        [0, 0.731059, 0.268941],
        [0, 0, 0.731059],
        [0.622459, 0.377541, 0],
    ]
    np.testing.assert_allclose(found.gates[0], wanted, atol=1e-5)
    np.testing.assert_array_equal(found.sides.batch_statistics["load"]["sum"], [5, 4, 3])


@pytest.mark.parametrize("capacity", [1, 3, 6, S])
def test_training_equals_the_loops_with_the_numbers_drawn(
    capacity: int, route: Callable, drawn: Callable
) -> None:
    router = GShardRouter.params(dim=E, num_experts=E, balance_loss=1.0).build()
    found = route(router, LOGITS, capacity=capacity, training=True)
    rnd = drawn(router, LOGITS, 2)[..., 1]
    groups = [algorithm_1(LOGITS[g], rnd[g], capacity) for g in range(B)]
    np.testing.assert_allclose(found.gates, [g.gates for g in groups], rtol=1e-5)
    np.testing.assert_allclose(found.sides.losses["moe_balance"], sum(g.loss for g in groups), 1e-5)
    counts = sum(g.counts for g in groups)
    np.testing.assert_array_equal(found.sides.batch_statistics["load"]["sum"], counts)
    used = sum((algorithm_1(LOGITS[g], rnd[g], S).gates > 0).sum() for g in range(B))
    dropped = 1 - sum((g.gates > 0).sum() for g in groups) / used
    assert found.mean("moe/dropped_choices_fraction") == pytest.approx(dropped)


def test_evaluation_equals_the_loops_with_zeros_drawn(route: Callable) -> None:
    router = GShardRouter.params(dim=E, num_experts=E).build()
    found = route(router, LOGITS, capacity=4)
    for g in range(B):
        wanted = algorithm_1(LOGITS[g], np.zeros(S), 4)
        np.testing.assert_allclose(found.gates[g], wanted.gates, rtol=1e-5)


def test_padding_is_left_out_of_the_loops(route: Callable, drawn: Callable) -> None:
    router = GShardRouter.params(dim=E, num_experts=E, balance_loss=1.0).build()
    valid = np.random.default_rng(1).random([B, S]) < 0.7
    found = route(router, LOGITS, valid=valid, capacity=3, training=True)
    rnd = drawn(router, LOGITS, 2)[..., 1]
    loss = 0.0
    for g in range(B):
        wanted = algorithm_1(LOGITS[g, valid[g]], rnd[g, valid[g]], 3)
        np.testing.assert_allclose(found.gates[g, valid[g]], wanted.gates, rtol=1e-5)
        loss += wanted.loss
    np.testing.assert_allclose(found.sides.losses["moe_balance"], loss, rtol=1e-5)


def test_a_second_choice_that_is_not_used_still_takes_a_place(
    route: Callable, drawn: Callable
) -> None:
    router = GShardRouter.params(dim=3, num_experts=3).build()
    logits = np.tile(np.array([9.0, 4.0, 0.0], "f"), [1, 40, 1])  # 2 g_2 is about 1 in 75
    found = route(router, logits, capacity=20, training=True)
    rnd = drawn(router, logits, 2)[0, :, 1]
    used = 2 / (1 + np.exp(5.0)) > rnd
    np.testing.assert_array_equal(found.slot[0, :, 1] >= 0, used & (np.arange(40) < 20))


def test_second_choices_are_used_as_often_as_twice_their_gate(route: Callable) -> None:
    router = GShardRouter.params(dim=2, num_experts=2).build()
    logits = np.tile(np.array([np.log(4.0), 0.0], "f"), [40, 50, 1])  # g_2 = 1/5
    found = route(router, logits, capacity=100, training=True)
    rate = (found.slot[..., 1] >= 0).mean()
    assert abs(rate - 0.4) < 4 * np.sqrt(0.4 * 0.6 / 2000)
