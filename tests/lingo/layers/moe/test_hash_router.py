"""Hash routing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.inputs import needs_token_ids
from lingo.layers.moe.hash_router import HashRouter
from lingo.ops import random

B, S, E = 2, 10, 3
X = np.zeros([B, S, E])
IDS = np.random.default_rng(0).integers(0, 5, [B, S]).astype("i")
VALID = np.random.default_rng(1).random([B, S]) < 0.7


def hashed(ids: np.ndarray, seed: int) -> np.ndarray:
    """Returns the expert of each token, by the host's form of the hash."""
    key = random.fold(random.root_key(seed), ids)
    return np.asarray(random.bits(key, 1))[..., 0] % E


@pytest.mark.parametrize("capacity", [1, 2, S])
def test_tokens_go_where_their_hash_says_until_that_is_full(capacity: int, route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E, seed=7).build()
    found = route(router, X, ids=IDS, valid=VALID, capacity=capacity)
    wanted = np.zeros([B, S, E])
    for g in range(B):
        count = [0] * E
        for s in np.flatnonzero(VALID[g]):
            e = hashed(IDS[g], 7)[s]
            wanted[g, s, e] = count[e] < capacity
            count[e] += 1
    np.testing.assert_array_equal(found.gates, wanted)


def test_a_vocabulary_spreads_over_experts(route: Callable) -> None:
    ids = np.arange(6000, dtype="i")[None]
    router = HashRouter.params(dim=E, num_experts=E).build()
    load = route(router, np.zeros([1, 6000, E]), ids=ids, capacity=1).sides.batch_statistics["load"]
    np.testing.assert_allclose(load["sum"], [2000] * E, atol=4 * np.sqrt(6000 * 2 / 9))


def test_another_seed_is_another_hash(route: Callable) -> None:
    one, two = (
        route(HashRouter.params(dim=E, num_experts=E, seed=s).build(), X, ids=IDS, capacity=S)
        for s in (1, 2)
    )
    assert (one.expert != two.expert).any()


def test_it_needs_the_numbers_of_the_tokens(route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E).build()
    assert needs_token_ids(router)
    with pytest.raises(ParamError, match="HashRouter needs the ids of the tokens"):
        route(router, X, capacity=1)


def test_it_has_no_weights_and_no_losses(route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E).build()
    assert router.weights() == {}
    assert route(router, X, ids=IDS, capacity=1).sides.losses == {}
