"""Expert choice routing, against a sort of the tokens by each expert."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.layers.moe.expert_choice import ExpertChoiceRouter

B, S, E = 3, 8, 4
LOGITS = np.random.default_rng(0).normal(size=[B, S, E]).astype("f")
VALID = np.array([[True] * 8, [True] * 3 + [False] * 5, [False] * 4 + [True] * 4])


@pytest.mark.parametrize("capacity", [1, 3, S])
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
    np.testing.assert_array_equal(found.sides.batch_statistics["load"]["sum"], [9, 9, 9, 9])
    assert found.sides.losses == {}
    assert found.mean("moe/max_load") == 1.0


def test_tokens_that_no_expert_takes_count_as_dropped(route: Callable) -> None:
    router = ExpertChoiceRouter.params(dim=2, num_experts=2).build()
    logits = np.array([[[3, 0], [0, 3], [0, 0], [0, 0]]])
    assert route(router, logits, capacity=1).mean("moe/dropped_fraction") == 0.5
