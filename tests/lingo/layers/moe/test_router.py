"""What all routers promise, on all routers there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import ExpertChoiceRouter, context
from lingo.layers.inputs import needs_token_ids
from lingo.layers.moe.router import HashRouter, Router, Tokens
from lingo.layers.moe.token_choice import GShardRouter, LingvoRouter, SwitchRouter, TopNRouter
from lingo.ops import random

B, T, E = 4, 6, 4
RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=[B, T, E]).astype("f")
IDS = RNG.integers(0, 50, [B, T]).astype("i")
VALID = np.array([[True] * 6, [True] * 4 + [False] * 2, [False] * 6, [True] * 5 + [False]])

ROUTERS: dict[str, Params] = {
    "switch": SwitchRouter.params(jitter=0.2, priority="gate", z_loss=0.1),
    "gshard": GShardRouter.params(z_loss=0.1),
    "lingvo": LingvoRouter.params(policy="sampling"),
    "top 1": TopNRouter.params(num_choices=1),
    "top 3": TopNRouter.params(num_choices=3, threshold=0.5, priority="gate"),
    "expert choice": ExpertChoiceRouter.params(z_loss=0.1),
    "hash": HashRouter.params(),
}
over_all = pytest.mark.parametrize("params", ROUTERS.values(), ids=list(ROUTERS))
LEARNED = {name: params for name, params in ROUTERS.items() if name != "hash"}
over_learned = pytest.mark.parametrize("params", LEARNED.values(), ids=list(LEARNED))


def built(params: Params) -> Router:
    return params.copy().set(dim=E, num_experts=E).build()


def assert_same(a: Any, b: Any) -> None:
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


@over_all
@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_an_expert_gets_each_slot_once_and_none_past_its_capacity(
    params, capacity, training, route
):
    found = route(built(params), LOGITS, valid=VALID, ids=IDS, capacity=capacity, training=training)
    assert found.slot.max() < capacity
    assert found.expert.shape[-1] == built(params).max_choices()
    for g in range(B):
        sent = found.slot[g] >= 0
        given = list(zip(found.expert[g][sent], found.slot[g][sent], strict=True))
        assert len(set(given)) == len(given)
        for experts in found.expert[g]:
            assert len(set(experts)) == len(experts)


@over_all
def test_padding_is_sent_nowhere_and_changes_nothing_for_others(params, route):
    router = built(params)
    found = route(router, LOGITS, valid=VALID, ids=IDS, capacity=2, training=True)
    assert (found.slot[~VALID] == -1).all()
    assert (found.gate[~VALID] == 0).all()
    other = np.where(VALID[..., None], LOGITS, 5 * LOGITS[:, ::-1])
    ids = np.where(VALID, IDS, 0)
    again = route(router, other, valid=VALID, ids=ids, capacity=2, training=True)
    np.testing.assert_array_equal(found.gates, again.gates)
    assert_same(
        (found.sides.losses, found.sides.metrics, found.sides.batch_statistics),
        (again.sides.losses, again.sides.metrics, again.sides.batch_statistics),
    )


@over_all
def test_a_batch_of_padding_has_losses_and_weights_of_zero(params: Params, route: Callable) -> None:
    nothing = np.zeros([B, T], bool)
    sides = route(built(params), LOGITS, valid=nothing, ids=IDS, capacity=2, training=True).sides
    for value in tf.nest.flatten((sides.losses, sides.metrics, sides.batch_statistics)):
        np.testing.assert_array_equal(value, np.zeros(value.shape))


@over_all
def test_rows_one_by_one_are_routed_as_all_at_once_and_their_sides_add(params, route):
    router, given = built(params), {"capacity": 2, "group_size": 3, "training": True}
    whole = route(router, LOGITS, valid=VALID, ids=IDS, **given)
    added = context.SideOutputs()
    for b in range(B):
        here = slice(b, b + 1)
        row = route(
            router, LOGITS[here], valid=VALID[here], ids=IDS[here], rows=np.array([b]), **given
        )
        for name in ("expert", "slot", "gate"):
            np.testing.assert_array_equal(
                getattr(row, name), getattr(whole, name)[2 * b : 2 * b + 2]
            )
        added.add({"losses": row.sides.losses, "metrics": row.sides.metrics})
        added.add({"batch_statistics": row.sides.batch_statistics})
    assert_same(
        (whole.sides.losses, whole.sides.metrics, whole.sides.batch_statistics),
        (added.losses, added.metrics, added.batch_statistics),
    )


@over_all
def test_first_choices_of_causal_routers_go_by_no_later_token(params, route):
    router, later = built(params), np.copy(LOGITS)
    later[:, 3:] = 9 * np.roll(later[:, 3:], 1, axis=-1)
    before, after = (
        route(router, logits, ids=ids, capacity=1)
        for logits, ids in ((LOGITS, IDS), (later, np.where(np.arange(T) < 3, IDS, IDS[:, ::-1])))
    )
    first = slice(None) if router.max_choices() == E else slice(1)
    same = np.array_equal(before.slot[:, :3, first] >= 0, after.slot[:, :3, first] >= 0)
    assert same == router.is_causal


@over_all
def test_nothing_is_random_in_evaluation(params: Params, route: Callable) -> None:
    router = built(params)
    a = route(router, LOGITS, ids=IDS, capacity=3, seed=1)
    b = route(router, LOGITS, ids=IDS, capacity=3, seed=2)
    np.testing.assert_array_equal(a.gates, b.gates)


@over_learned
def test_gradients_reach_the_weights_through_the_gates(params: Params) -> None:
    router = params.copy().set(dim=E, num_experts=E, z_loss=0.0).build()
    weights = {"w": tf.constant(RNG.normal(size=[E, E]).astype("f"))}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        tokens = Tokens(tf.ones([B, T], tf.bool), None, T)
        routing, _ = context.apply(router, weights, LOGITS, tokens=tokens, capacity=T)
        total = tf.reduce_sum(routing.gate[..., 0] ** 2)
    gradient = tape.gradient(total, weights)["w"].numpy()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 1e-3


def test_load_and_metrics_tell_what_was_asked_and_what_was_dropped(route: Callable) -> None:
    router = built(SwitchRouter.params())
    logits = np.zeros([1, 6, E], "f")
    logits[0, range(6), [0, 0, 0, 1, 0, 2]] = 1.0
    valid = np.array([[True] * 5 + [False]])
    found = route(router, logits, valid=valid, capacity=2)
    moment = found.sides.batch_statistics["load"]
    np.testing.assert_allclose(moment["sum"] / moment["weight"], [E * 4 / 5, E / 5, 0, 0])
    assert found.mean("moe/max_load") == pytest.approx(E * 4 / 5)
    assert found.mean("moe/dropped_fraction") == pytest.approx(2 / 5)
    assert found.mean("moe/dropped_choices_fraction") == pytest.approx(2 / 5)


def test_load_is_a_shown_state_that_starts_in_balance() -> None:
    spec = built(HashRouter.params()).states()["load"]
    assert spec.shown
    np.testing.assert_array_equal(
        spec.init.draw(random.root_key(0), spec.shape, fan_in=1), np.ones(E)
    )


def hashed(ids: np.ndarray, seed: int) -> np.ndarray:
    """Returns the expert of each token, by the host's form of the hash."""
    key = random.fold(random.root_key(seed), ids)
    return np.asarray(random.bits(key, 1))[..., 0] % E


@pytest.mark.parametrize("capacity", [1, 2, T])
def test_tokens_go_where_their_hash_says_until_that_is_full(capacity: int, route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E, seed=7).build()
    found = route(router, LOGITS, ids=IDS, valid=VALID, capacity=capacity)
    wanted = np.zeros([B, T, E])
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
    np.testing.assert_allclose(load["sum"], [1500] * E, atol=4 * np.sqrt(6000 * 3 / 16))


def test_it_needs_the_ids_of_the_tokens(route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E).build()
    assert needs_token_ids(router)
    with pytest.raises(ParamError, match="HashRouter needs the ids of the tokens"):
        route(router, LOGITS, capacity=1)


def test_it_has_no_weights_and_no_losses(route: Callable) -> None:
    router = HashRouter.params(dim=E, num_experts=E).build()
    assert router.weights() == {}
    assert route(router, LOGITS, ids=IDS, capacity=1).sides.losses == {}
