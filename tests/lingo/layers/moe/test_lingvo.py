"""Lingvo's gating, against a loop over tokens in its order of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.moe.token_choice import LingvoRouter

B, S, E = 3, 12, 4
LOGITS = 2 * np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
VALID = np.random.default_rng(1).random([B, S]) < 0.8


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
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
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


def built(**fields: object) -> LingvoRouter:
    return LingvoRouter.params(dim=E, num_experts=E, **fields).build()


@pytest.mark.parametrize("capacity", [1, 3, S])
@pytest.mark.parametrize("policy", ["all", "sampling", "random"])
def test_evaluation_uses_the_second_best_expert_whatever_the_policy(
    capacity: int, policy: str, route: Callable
) -> None:
    found = route(built(policy=policy), LOGITS, valid=VALID, capacity=capacity)
    for g in range(B):
        logits = LOGITS[g, VALID[g]]
        wanted = lingvo_loop(logits, second_best(logits), np.ones(len(logits), bool), capacity)
        np.testing.assert_allclose(found.gates[g, VALID[g]], wanted, rtol=1e-5)


@pytest.mark.parametrize("capacity", [1, 3, S])
def test_random_leaves_out_second_experts_before_places_are_counted(
    capacity: int, route: Callable, drawn: Callable
) -> None:
    router = built(policy="random", threshold=0.6)
    found = route(router, LOGITS, capacity=capacity, training=True)
    rnd = drawn(router, LOGITS, 2)[..., 1]
    p = np.sort(np.exp(LOGITS), -1)
    used = rnd < p[..., -2] / (p[..., -1] + p[..., -2]) / 0.6
    assert 0.1 < used.mean() < 0.9
    for g in range(B):
        wanted = lingvo_loop(LOGITS[g], second_best(LOGITS[g]), used[g], capacity)
        np.testing.assert_allclose(found.gates[g], wanted, rtol=1e-5)


def test_sampling_draws_the_second_expert_and_counts_as_the_loop_does(route: Callable) -> None:
    found = route(built(policy="sampling"), LOGITS, capacity=3, training=True)
    first, second = found.expert[..., 0], found.expert[..., 1]
    np.testing.assert_array_equal(first, LOGITS.argmax(-1))
    assert (second != second_best(LOGITS)).any()
    for g in range(B):
        wanted = lingvo_loop(LOGITS[g], second[g], np.ones(S, bool), 3)
        np.testing.assert_allclose(found.gates[g], wanted, rtol=1e-5)


def test_sampling_is_in_proportion_to_the_other_probabilities(route: Callable) -> None:
    p = np.array([0.1, 0.5, 0.1, 0.3], "f")
    logits = np.tile(np.log(p), [40, 50, 1])
    second = route(built(policy="sampling"), logits, capacity=1, training=True).expert[..., 1]
    rates = np.bincount(second.ravel(), minlength=E) / second.size
    np.testing.assert_allclose(rates, [0.2, 0.0, 0.2, 0.6], atol=4 * np.sqrt(0.25 / 2000))


def test_the_balance_loss_is_e_squared_times_the_mean_of_density_times_proxy(
    route: Callable,
) -> None:
    found = route(built(balance_loss=1.0), LOGITS, capacity=1)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    density = np.eye(E)[LOGITS.argmax(-1)].mean(1)
    wanted = E**2 * (density * p.mean(1)).mean(-1).sum()
    np.testing.assert_allclose(found.sides.losses["moe_balance"], wanted, rtol=1e-5)


def test_a_threshold_of_zero_is_refused() -> None:
    with pytest.raises(ParamError, match=r"threshold=0\.0 is not positive"):
        built(threshold=0.0)
