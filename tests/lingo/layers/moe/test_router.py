"""What all routers promise, on all routers there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params, inherited_values
from lingo.layers import context
from lingo.layers.layer import Layer
from lingo.layers.lift import vmap_layer
from lingo.layers.moe.expert_choice import ExpertChoiceRouter
from lingo.layers.moe.gshard import GShardRouter
from lingo.layers.moe.hash_router import HashRouter
from lingo.layers.moe.lingvo import LingvoRouter
from lingo.layers.moe.router import Router
from lingo.layers.moe.routing import Tokens
from lingo.layers.moe.switch import SwitchRouter
from lingo.layers.moe.top_n import TopNRouter
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
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


class Scaled(Layer):
    """Multiplies each token by 1 + the sum of its gates."""

    dim: int  # width of the input
    router: Router  # whose gates

    def setup(self) -> None:
        self.router = self.p.router.build(dim=self.p.dim, num_experts=E)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        valid = tf.ones(tf.shape(x)[:2], tf.bool)
        ids = tf.zeros(tf.shape(x)[:2], tf.int32) + tf.range(T)
        routing = self.router(x, tokens=Tokens(valid, ids, 3), capacity=2)
        return x * tf.reshape(1 + tf.reduce_sum(routing.gate, axis=-1), [-1, T, 1])


class SideBySide(Layer):
    """Two copies of a layer along a lifted axis."""

    dim: int  # width of the input
    layer: Layer  # what is lifted

    def setup(self) -> None:
        self.layer = self.copies(
            "layers", self.p.layer.build(**inherited_values()), 2, axis="stage"
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return vmap_layer(self.layer, 2, tf.stack([x, x]), axis="stage")


class OneByOne(Layer):
    """The same two copies, called one after the other."""

    dim: int  # width of the input
    layer: Layer  # what is copied

    def setup(self) -> None:
        self.layers = [self.p.layer.build(**inherited_values()) for _ in range(2)]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.stack([layer(x) for layer in self.layers])


def value_and_gradients(params: Params, *, eager: bool = False) -> tuple[Any, dict[str, Any]]:
    """Returns outputs, losses and metrics of a training call, and gradients of the input."""
    layer = params.build(dim=E)
    x, call = tf.constant(LOGITS), {"training": True, "key": random.root_key(1)}
    weights = {
        name: tf.eye(E, batch_shape=s.program_shape[:-2]) for name, s in layer.weights().items()
    }

    def compute(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, sides = context.apply(layer, weights, x, call=call | {"rows": tf.range(B)})
            total = tf.reduce_sum(tf.sin(y)) + sum(sides.losses.values())
        return (y, sides.losses, sides.metrics), tape.gradient(total, x)

    return compute(x) if eager else tf.function(compute, autograph=False)(x)


def assert_same(a: Any, b: Any) -> None:
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


@over_all
def test_eager_graph_and_xla_agree_with_a_batch_of_any_size(params: Params) -> None:
    router = built(params)
    weights = {name: tf.eye(E) for name in router.weights()}

    def call(x: tf.Tensor, valid: tf.Tensor, ids: tf.Tensor) -> Any:
        context_ = {"training": True, "key": random.root_key(1), "rows": tf.range(tf.shape(x)[0])}
        with tf.GradientTape() as tape:
            tape.watch(x)
            routing, sides = context.apply(
                router, weights, x, tokens=Tokens(valid, ids, 3), capacity=2, call=context_
            )
            total = tf.reduce_sum(tf.sin(routing.gate)) + sum(sides.losses.values())
        gradient = tape.gradient(total, x, unconnected_gradients="zero")
        return routing[:3], sides.losses, sides.metrics, sides.batch_statistics, gradient

    inputs = [tf.constant(v) for v in (LOGITS, VALID, IDS)]
    shapes = [tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in inputs]
    eager = call(*inputs)
    for jit in (False, True):
        compiled = tf.function(call, shapes, autograph=False, jit_compile=jit)
        assert_same(eager, compiled(*inputs))


@over_all
def test_lengths_that_only_the_program_knows_change_nothing(params: Params) -> None:
    router = built(params)
    weights = {name: tf.eye(E) for name in router.weights()}

    def call(x: tf.Tensor, valid: tf.Tensor, ids: tf.Tensor, size: Any, capacity: Any) -> Any:
        tokens = Tokens(valid, ids, size)
        routing, sides = context.apply(router, weights, x, tokens=tokens, capacity=capacity)
        return routing[:3], sides.metrics

    inputs = [tf.constant(v) for v in (LOGITS, VALID, IDS)]
    shapes = [tf.TensorSpec([None, None, *v.shape[2:]], v.dtype) for v in inputs]
    scalar = tf.TensorSpec([], tf.int32)
    unknown = tf.function(call, [*shapes, scalar, scalar], autograph=False)
    assert_same(call(*inputs, 3, 2), unknown(*inputs, tf.constant(3), tf.constant(2)))


@over_all
def test_a_scan_rematerialization_and_a_lifted_axis_change_nothing(params: Params) -> None:
    scaled = Scaled.params(router=params)
    plain = value_and_gradients(Stack.params(layer=scaled, num_layers=2), eager=True)
    changed = Repeat.params(layer=Remat.params(layer=scaled), num_layers=2)
    assert_same(plain, value_and_gradients(changed))
    alone = value_and_gradients(OneByOne.params(layer=scaled), eager=True)
    assert_same(alone, value_and_gradients(SideBySide.params(layer=scaled)))


@over_all
@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_an_expert_gets_each_slot_once_and_none_past_its_capacity(
    params: Params, capacity: int, training: bool, route: Callable
) -> None:
    found = route(built(params), LOGITS, valid=VALID, ids=IDS, capacity=capacity, training=training)
    assert found.slot.max() < capacity
    for g in range(B):
        sent = found.slot[g] >= 0
        given = list(zip(found.expert[g][sent], found.slot[g][sent], strict=True))
        assert len(set(given)) == len(given)
        for experts in found.expert[g]:
            assert len(set(experts)) == len(experts)


@over_all
def test_padding_is_sent_nowhere_and_changes_nothing_for_others(
    params: Params, route: Callable
) -> None:
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
def test_rows_one_by_one_are_routed_as_all_at_once_and_their_sides_add(
    params: Params, route: Callable
) -> None:
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
def test_permuting_groups_permutes_the_routing(params: Params, route: Callable) -> None:
    router, order = built(params), np.array([2, 0, 3, 1])
    given = {"capacity": 2, "training": True}
    straight = route(router, LOGITS, valid=VALID, ids=IDS, **given)
    permuted = route(router, LOGITS[order], valid=VALID[order], ids=IDS[order], rows=order, **given)
    np.testing.assert_array_equal(straight.slot[order], permuted.slot)
    np.testing.assert_array_equal(straight.gate[order], permuted.gate)
    assert_same(straight.sides.losses, permuted.sides.losses)


@over_all
def test_first_choices_of_causal_routers_go_by_no_later_token(
    params: Params, route: Callable
) -> None:
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


def test_routers_tell_how_many_experts_see_a_token_at_most() -> None:
    numbers = {name: built(params).max_choices() for name, params in ROUTERS.items()}
    assert numbers == {
        "switch": 1,
        "gshard": 2,
        "lingvo": 2,
        "top 1": 1,
        "top 3": 3,
        "expert choice": E,
        "hash": 1,
    }
