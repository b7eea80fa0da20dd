"""ST-MoE's top-n routing, against a loop over tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.moe.token_choice import TopNRouter

B, S, E = 3, 12, 5
LOGITS = 2 * np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
VALID = np.random.default_rng(1).random([B, S]) < 0.8


def top_n_loop(
    logits: np.ndarray, n: int, threshold: float, rnd: np.ndarray, capacity: int
) -> np.ndarray:
    """Zoph et al. 2022, appendix: gates [S, E] of a group from logits [S, E] and rnd [S, n]."""
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
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


@pytest.mark.parametrize("capacity", [2, 5, S])
@pytest.mark.parametrize("n", [1, 2, 3, E])
def test_training_equals_the_loop_with_the_numbers_drawn(
    n: int, capacity: int, route: Callable, drawn: Callable
) -> None:
    router = TopNRouter.params(dim=E, num_experts=E, num_choices=n).build()
    found = route(router, LOGITS, valid=VALID, capacity=capacity, training=True)
    rnd = drawn(router, LOGITS, n)
    for g in range(B):
        wanted = top_n_loop(LOGITS[g, VALID[g]], n, 0.2, rnd[g, VALID[g]], capacity)
        np.testing.assert_allclose(found.gates[g, VALID[g]], wanted, rtol=1e-5)


def test_evaluation_uses_all_n(route: Callable) -> None:
    router = TopNRouter.params(dim=E, num_experts=E, num_choices=3).build()
    found = route(router, LOGITS, capacity=4)
    for g in range(B):
        wanted = top_n_loop(LOGITS[g], 3, 0.2, np.zeros([S, 3]), 4)
        np.testing.assert_allclose(found.gates[g], wanted, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_dropped_choices_are_those_that_the_loop_finds_no_room_for(
    training: bool, route: Callable, drawn: Callable
) -> None:
    router = TopNRouter.params(dim=E, num_experts=E, num_choices=2).build()
    found = route(router, LOGITS, valid=VALID, capacity=int(1.25 * S / E), training=training)
    rnd = drawn(router, LOGITS, 2) if training else np.zeros([B, S, 2])
    asked = seen = tokens = 0
    for g in range(B):
        given = LOGITS[g, VALID[g]], 2, 0.2, rnd[g, VALID[g]]
        asked += (top_n_loop(*given, capacity=S) > 0).sum()
        gates = top_n_loop(*given, capacity=int(1.25 * S / E))
        seen += (gates > 0).sum()
        tokens += (gates > 0).any(-1).sum()
    assert found.mean("moe/dropped_choices_fraction") == pytest.approx(1 - seen / asked)
    assert found.mean("moe/dropped_fraction") == pytest.approx(1 - tokens / VALID.sum())
    assert 1 - seen / asked > 0.1, "which the tokens alone do not show"


def test_choices_are_used_as_often_as_their_gate_over_the_threshold(route: Callable) -> None:
    router = TopNRouter.params(dim=3, num_experts=3, num_choices=3, threshold=0.4).build()
    logits = np.tile(np.log(np.array([0.1, 0.6, 0.3], "f")), [40, 50, 1])
    found = route(router, logits, capacity=100, training=True)
    rates = (found.slot >= 0).mean((0, 1))
    np.testing.assert_allclose(rates, [1.0, 0.75, 0.25], atol=4 * np.sqrt(0.19 / 2000))


def test_no_choice_at_all_is_refused() -> None:
    with pytest.raises(ParamError, match="num_choices=0 is not positive"):
        TopNRouter.params(dim=3, num_experts=3, num_choices=0).build()


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ParamError, match=r"threshold=-0\.2 is not positive"):
        TopNRouter.params(dim=3, num_experts=3, threshold=-0.2).build()
