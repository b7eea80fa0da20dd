"""Routers where tokens choose, against the loops over tokens of the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from lingo.layers.moe.token_choice import (
    GShardRouter,
    LingvoRouter,
    SwitchRouter,
    TokenChoiceRouter,
    TopNRouter,
)

B, S, E = 3, 12, 4
LOGITS = 2 * np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
VALID = np.random.default_rng(1).random([B, S]) < 0.8
OF_TWO = np.array([[[1, 0], [3, 0], [2, 0], [0, 1]]], "f")  # logits of two experts


def built(
    cls: type[TokenChoiceRouter], num_experts: int = E, **fields: object
) -> TokenChoiceRouter:
    return cls.params(dim=num_experts, num_experts=num_experts, **fields).build()


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("cls", "priority", "capacity", "slots"),
    [
        (SwitchRouter, "position", 2, [[0], [1], [-1], [0]]),
        (SwitchRouter, "gate", 2, [[-1], [0], [1], [0]]),
        # first choices still come before all second ones
        (TopNRouter, "gate", 4, [[2, 3], [0, 1], [1, 2], [0, 3]]),
    ],
)
def test_slots_go_by_position_or_to_the_surest_tokens(cls, priority, capacity, slots, route):
    found = route(built(cls, 2, priority=priority), OF_TWO, capacity=capacity)
    np.testing.assert_array_equal(found.slot[0], slots)


def test_by_gate_padding_takes_no_slot_however_sure(route: Callable) -> None:
    valid = np.array([[True, False, True, True]])
    found = route(built(SwitchRouter, 2, priority="gate"), OF_TWO, valid=valid, capacity=1)
    np.testing.assert_array_equal(found.slot[0, :, 0], [-1, -1, 0, 0])


@pytest.mark.parametrize(("scale", "factor"), [("switch", E), ("gshard", 1 / E)])
def test_the_balance_loss_is_the_sum_of_density_times_proxy(scale, factor, route):
    router = built(SwitchRouter, balance_loss=1.0, balance_scale=scale)
    loss = route(router, LOGITS, capacity=1).sides.losses["moe_balance"]
    density = np.eye(E)[LOGITS.argmax(-1)].mean(1)
    wanted = factor * (density * softmax(LOGITS).mean(1)).sum()
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def switch_loop(p: np.ndarray, capacity: int) -> np.ndarray:
    """Fedus et al. 2022, sec. 2.1 and 2.2: y = p_i(x) E_i(x), tokens past the capacity skipped."""
    gates, count = np.zeros_like(p), [0] * E
    for s in range(len(p)):
        e = int(np.argmax(p[s]))
        if count[e] < capacity:
            gates[s, e] = p[s, e]
        count[e] += 1
    return gates


@pytest.mark.parametrize("capacity", [1, 2, S])
def test_switch_takes_the_most_probable_expert_until_that_is_full(capacity, route):
    found = route(built(SwitchRouter), LOGITS, valid=VALID, capacity=capacity)
    for g in range(B):
        wanted = switch_loop(softmax(LOGITS[g, VALID[g]]), capacity)
        np.testing.assert_allclose(found.gates[g, VALID[g]], wanted, rtol=1e-5)


def test_switch_without_jitter_is_not_random_in_training(route: Callable) -> None:
    router = built(SwitchRouter)
    a, b = (route(router, LOGITS, capacity=2, training=True, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(a.gates, b.gates)


PUBLISHED = [[2, 1, 0], [3, 0.5, 0], [2.5, 0, 1], [0, 2, 1], [1, 0, 2], [1.5, 1, 0.5]]


class Gated(NamedTuple):
    """What algorithm 1 gives for a group: gates [S, E], counts [E], the auxiliary loss."""

    gates: np.ndarray
    counts: np.ndarray
    loss: float


def algorithm_1(logits: np.ndarray, rnd: np.ndarray, capacity: int) -> Gated:
    """Lepikhin et al. 2020, algorithm 1, line by line."""
    num_tokens, num_experts = logits.shape
    g = softmax(logits)
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


def test_gshard_in_the_published_example(route: Callable) -> None:
    found = route(built(GShardRouter, 3), np.array([PUBLISHED]), capacity=4)
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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("capacity", [1, 3, 6, S])
def test_gshard_equals_the_loops_over_valid_tokens_with_the_numbers_drawn(
    capacity, training, route, drawn
):
    router = built(GShardRouter, balance_loss=1.0)
    found = route(router, LOGITS, valid=VALID, capacity=capacity, training=training)
    rnd = drawn(router, LOGITS, 2)[..., 1] if training else np.zeros([B, S])
    given = [(LOGITS[g, VALID[g]], rnd[g, VALID[g]]) for g in range(B)]
    groups = [algorithm_1(*tokens, capacity) for tokens in given]
    for g, wanted in enumerate(groups):
        np.testing.assert_allclose(found.gates[g, VALID[g]], wanted.gates, rtol=1e-5)
    np.testing.assert_allclose(found.sides.losses["moe_balance"], sum(g.loss for g in groups), 1e-5)
    counts = sum(g.counts for g in groups)
    np.testing.assert_array_equal(found.sides.batch_statistics["load"]["sum"], counts)
    used = sum((algorithm_1(*tokens, S).gates > 0).sum() for tokens in given)
    dropped = 1 - sum((g.gates > 0).sum() for g in groups) / used
    assert found.mean("moe/dropped_choices_fraction") == pytest.approx(dropped)


def test_a_second_choice_of_gshard_that_is_not_used_still_takes_a_slot(route, drawn):
    router = built(GShardRouter, 3)
    logits = np.tile(np.array([9.0, 4.0, 0.0], "f"), [1, 40, 1])  # 2 g_2 is about 1 in 75
    found = route(router, logits, capacity=20, training=True)
    rnd = drawn(router, logits, 2)[0, :, 1]
    used = 2 / (1 + np.exp(5.0)) > rnd
    np.testing.assert_array_equal(found.slot[0, :, 1] >= 0, used & (np.arange(40) < 20))


def top_n_loop(
    logits: np.ndarray, n: int, threshold: float, rnd: np.ndarray, capacity: int
) -> np.ndarray:
    """Zoph et al. 2022, appendix: gates [S, E] of a group from logits [S, E] and rnd [S, n]."""
    p = softmax(logits)
    gates, count = np.zeros_like(p), [0] * E
    best = np.argsort(-p, -1)[:, :n]
    for i in range(n):
        for s in range(len(p)):
            e = best[s, i]
            gate = p[s, e] / (p[s, best[s]].sum() if n > 1 else 1.0)
            if i > 0 and not rnd[s, i] < min(1.0, gate / threshold):
                continue
            if count[e] < capacity:
                gates[s, e] = gate
            count[e] += 1
    return gates


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("capacity", [2, 5, S])
@pytest.mark.parametrize("n", [1, 2, 3, E])
def test_top_n_equals_the_loop_with_the_numbers_drawn(n, capacity, training, route, drawn):
    router = built(TopNRouter, num_choices=n)
    found = route(router, LOGITS, valid=VALID, capacity=capacity, training=training)
    rnd = drawn(router, LOGITS, n) if training else np.zeros([B, S, n])
    asked = routed = tokens = 0
    for g in range(B):
        given = LOGITS[g, VALID[g]], n, 0.2, rnd[g, VALID[g]]
        gates = top_n_loop(*given, capacity)
        np.testing.assert_allclose(found.gates[g, VALID[g]], gates, rtol=1e-5)
        asked += (top_n_loop(*given, S) > 0).sum()
        routed += (gates > 0).sum()
        tokens += (gates > 0).any(-1).sum()
    assert found.mean("moe/dropped_choices_fraction") == pytest.approx(1 - routed / asked)
    assert found.mean("moe/dropped_fraction") == pytest.approx(1 - tokens / VALID.sum())


def lingvo_loop(
    logits: np.ndarray, second: np.ndarray, used: np.ndarray, capacity: int
) -> np.ndarray:
    """Gates of the tokens of a group: [S, E].

    Args:
        logits: [S, E].
        second: [S], the second expert.
        used: [S], whether a token has a second expert.
        capacity: C.
    """
    p = softmax(logits)
    first, gates, count = p.argmax(-1), np.zeros_like(p), [0] * E
    for expert, asks in ((first, np.ones(len(p), bool)), (second, used)):
        for s in np.flatnonzero(asks):
            e = expert[s]
            if count[e] < capacity:
                gates[s, e] = p[s, e] / (p[s, first[s]] + p[s, second[s]] + 1e-9)
            count[e] += 1
    return gates


def second_best(logits: np.ndarray) -> np.ndarray:
    return np.argsort(-logits, -1)[..., 1]


@pytest.mark.parametrize("capacity", [1, 3, S])
@pytest.mark.parametrize("policy", ["all", "sampling", "random"])
def test_lingvo_uses_the_second_best_expert_in_evaluation(capacity, policy, route):
    found = route(built(LingvoRouter, policy=policy), LOGITS, valid=VALID, capacity=capacity)
    for g in range(B):
        logits = LOGITS[g, VALID[g]]
        wanted = lingvo_loop(logits, second_best(logits), np.ones(len(logits), bool), capacity)
        np.testing.assert_allclose(found.gates[g, VALID[g]], wanted, rtol=1e-5)


@pytest.mark.parametrize("capacity", [1, 3, S])
def test_random_leaves_out_second_experts_before_slots_are_counted(capacity, route, drawn):
    router = built(LingvoRouter, policy="random", threshold=0.6)
    found = route(router, LOGITS, capacity=capacity, training=True)
    rnd = drawn(router, LOGITS, 2)[..., 1]
    p = np.sort(np.exp(LOGITS), -1)
    used = rnd < p[..., -2] / (p[..., -1] + p[..., -2]) / 0.6
    assert 0.1 < used.mean() < 0.9
    for g in range(B):
        wanted = lingvo_loop(LOGITS[g], second_best(LOGITS[g]), used[g], capacity)
        np.testing.assert_allclose(found.gates[g], wanted, rtol=1e-5)


def test_sampling_draws_the_second_expert_and_counts_as_the_loop_does(route: Callable) -> None:
    found = route(built(LingvoRouter, policy="sampling"), LOGITS, capacity=3, training=True)
    first, second = found.expert[..., 0], found.expert[..., 1]
    np.testing.assert_array_equal(first, LOGITS.argmax(-1))
    assert (second != second_best(LOGITS)).any()
    for g in range(B):
        wanted = lingvo_loop(LOGITS[g], second[g], np.ones(S, bool), 3)
        np.testing.assert_allclose(found.gates[g], wanted, rtol=1e-5)


def test_sampling_is_in_proportion_to_the_other_probabilities(route: Callable) -> None:
    logits = np.tile(np.log(np.array([0.1, 0.5, 0.1, 0.3], "f")), [40, 50, 1])
    router = built(LingvoRouter, policy="sampling")
    second = route(router, logits, capacity=1, training=True).expert[..., 1]
    rates = np.bincount(second.ravel(), minlength=E) / second.size
    np.testing.assert_allclose(rates, [0.2, 0.0, 0.2, 0.6], atol=4 * np.sqrt(0.25 / 2000))
