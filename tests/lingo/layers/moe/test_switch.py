"""Switch routing, against a loop over tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.layers.moe.token_choice import SwitchRouter

B, S, E = 2, 9, 3
LOGITS = np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
VALID = np.random.default_rng(1).random([B, S]) < 0.8


def switch_loop(p: np.ndarray, valid: np.ndarray, capacity: int) -> np.ndarray:
    """Fedus et al. 2022, sec. 2.1 and 2.2: y = p_i(x) E_i(x), tokens past the capacity skipped."""
    gates, count = np.zeros_like(p), [0] * E
    for s in np.flatnonzero(valid):
        e = int(np.argmax(p[s]))
        if count[e] < capacity:
            gates[s, e] = p[s, e]
        count[e] += 1
    return gates


@pytest.mark.parametrize("capacity", [1, 2, S])
def test_each_token_goes_to_its_most_probable_expert_until_that_is_full(
    capacity: int, route: Callable
) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E).build()
    found = route(router, LOGITS, valid=VALID, capacity=capacity)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    for g in range(B):
        np.testing.assert_allclose(found.gates[g], switch_loop(p[g], VALID[g], capacity), rtol=1e-5)


def test_slots_go_by_position(route: Callable) -> None:
    router = SwitchRouter.params(dim=2, num_experts=2).build()
    logits = np.array([[[1, 0], [0, 1], [1, 0], [1, 0], [0, 1]]])
    found = route(router, logits, capacity=2)
    np.testing.assert_array_equal(found.slot[0, :, 0], [0, 0, 1, -1, 1])


def test_training_without_jitter_is_not_random(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E).build()
    a, b = (route(router, LOGITS, capacity=2, training=True, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(a.gates, b.gates)
