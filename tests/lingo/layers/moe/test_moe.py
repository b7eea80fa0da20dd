"""A mixture computes what its experts do, one by one, whatever carries it out.

Axes: B batch, T positions, D width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import ExpertChoiceRouter, FeedForward, Remat, Repeat, Stack, context, path
from lingo.layers.inputs import CallInputs
from lingo.layers.moe import dispatch
from lingo.layers.moe.moe import UNROLLED, MoE
from lingo.layers.moe.router import HashRouter, Router, Routing, Tokens
from lingo.layers.moe.token_choice import SwitchRouter, TopNRouter
from lingo.ops import random

B, T, D, E = 3, 6, 4, 4
X = tf.constant(np.random.default_rng(0).normal(size=[B, T, D]).astype("f"))
SEGMENTS = np.array([[1] * 6, [1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0]], "i")
EXPERT = FeedForward.params(hidden_dim=5, gated=True, use_bias=True)
FORMS = ["ragged", "gather", "one_hot"]

Draw = Callable[..., dict[str, Any]]


def mixture(**fields: Any) -> Params:
    made = {"dim": D, "num_experts": E, "expert": EXPERT.copy(), "router": TopNRouter}
    return MoE.params(**made | fields)


def call(**fields: Any) -> dict[str, Any]:
    """Returns the context of a training call; rows are not those of a whole batch."""
    rows = 7 + tf.range(B)
    return {"training": True, "key": random.root_key(1), "rows": rows} | fields


class ToFirst(Router):
    """Sends every token to expert 0, which has room for the first of a group, and notes what."""

    def __call__(self, x: Any, *, tokens: Tokens, capacity: int) -> Routing:
        SEEN.append((x.dtype, tokens.group_size, capacity))
        shape = [B * T // tokens.group_size, tokens.group_size, 1]
        place = tf.range(shape[1])[:, None] + tf.zeros(shape, tf.int32)
        slot = tf.where(place < capacity, place, -1)
        gate = tf.cast(slot >= 0, tf.float32)
        return Routing(tf.zeros(shape, tf.int32), slot, gate, capacity)


SEEN: list[tuple[Any, int, int]] = []


def test_alike_experts_with_room_for_all_are_one_dense_network(draw: Draw) -> None:
    layer, dense = mixture(capacity_factor=float(E)).build(), EXPERT.copy().set(dim=D).build()
    one = draw(dense)
    weights = {f"experts/[0:{E}]/{k}": tf.stack([v] * E) for k, v in one.items()}
    weights |= {k: v for k, v in draw(layer).items() if k.startswith("router")}
    y, _ = context.apply(layer, weights, X)
    np.testing.assert_allclose(y, context.apply(dense, one, X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("router", "group_size", "stack"),
    [
        (SwitchRouter, 2, Stack),
        (TopNRouter.params(jitter=0.1), B * T, Repeat),
        (ExpertChoiceRouter, None, Stack),
    ],
)
def test_all_forms_agree_with_dropout_in_the_experts(draw, router, group_size, stack):
    expert = EXPERT.copy().set(dropout_rate=0.4)
    made = mixture(router=router, group_size=group_size, expert=expert, min_capacity=1)
    wanted, *others = (
        trained(Remat.params(layer=stack.params(layer=made.set(dispatch=form))), draw)
        for form in FORMS
    )
    for found in others:
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_experts_may_compute_in_bfloat16_and_the_router_stays_float32(draw, form):
    layer = mixture(dtype="bfloat16", dispatch=form).build()
    assert (layer.router.p.dtype, layer.experts.p.dtype) == ("float32", "bfloat16")
    assert context.apply(layer, draw(layer), X)[0].dtype == tf.bfloat16


def trained(params: Params, draw: Draw) -> list[np.ndarray]:
    """Returns outputs, losses, and the gradients of the input and of every weight."""
    layer = params.build(dim=D)
    weights = draw(layer)

    @tf.function(autograph=False)
    def run(x: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            y, sides = context.apply(layer, weights, x, segments=tf.constant(SEGMENTS), call=call())
            loss = tf.reduce_sum(tf.sin(y)) + tf.add_n([*sides.losses.values(), 0.0])
        return y, loss, tape.gradient(loss, [x, weights])

    found = tf.nest.flatten(run(tf.constant(X), weights))
    return [np.asarray(tf.convert_to_tensor(value)) for value in found]


def test_padding_gets_zeros_and_changes_nothing(draw: Draw) -> None:
    layer = mixture(min_capacity=1).build()
    weights, other = draw(layer), tf.where(SEGMENTS[..., None] > 0, X, 9 * X)
    y, same = (context.apply(layer, weights, x, segments=SEGMENTS)[0] for x in (X, other))
    np.testing.assert_allclose(y, same, rtol=1e-6, atol=1e-6)
    assert not y.numpy()[SEGMENTS == 0].any()


@pytest.mark.parametrize(
    ("fields", "training", "size", "capacity"),
    [
        ({"capacity_factor": 2.0, "min_capacity": 1}, True, 6, 3),
        ({"capacity_factor": 1.25, "min_capacity": 1}, True, 6, 1),
        ({"capacity_factor": 1.0, "eval_capacity_factor": 2.0, "min_capacity": 1}, False, 6, 3),
        ({"capacity_factor": 1.0}, True, 6, 4),
        ({"capacity_factor": 99.0}, True, 6, 6),
        ({"group_size": 3}, True, 3, 3),
        ({"group_size": 18, "capacity_factor": 1.25}, True, 18, 5),
    ],
)
def test_capacity_is_the_share_of_a_group_times_the_factor(draw, fields, training, size, capacity):
    layer = mixture(router=ToFirst, **fields).build()
    context.apply(layer, draw(layer), X, call=call(training=training))
    assert SEEN[-1][1:] == (size, capacity)


@pytest.mark.parametrize(
    ("group_size", "message"),
    [
        (4, "group_size=4 neither divides a row of 6 tokens"),
        (12, "3 rows of 6 tokens are not whole"),
    ],
)
def test_tokens_that_make_no_whole_groups_are_refused(draw, group_size, message):
    layer = mixture(group_size=group_size).build()
    with pytest.raises(ParamError, match=message):
        context.apply(layer, draw(layer), X)


@pytest.mark.parametrize("router", [SwitchRouter, TopNRouter, ExpertChoiceRouter])
def test_lengths_need_not_be_known(router: type, with_weights) -> None:
    layer, weights = with_weights(mixture(min_capacity=1, router=router).build())
    spec = tf.TensorSpec([None, None, D])
    run = tf.function(lambda x: context.apply(layer, weights, x)[0], input_signature=[spec])
    for x in (X, X[:2, :4]):
        np.testing.assert_allclose(run(x), context.apply(layer, weights, x)[0], atol=1e-6)


class Parts:
    """Rules of a mesh that splits experts, or nothing."""

    def __init__(self, num: int) -> None:
        self.num = num

    def activation(self, x: Any, axes: Any) -> Any:
        return x

    def weight(self, x: Any, axes: Any) -> Any:
        return x

    def parts(self, axis: str) -> int:
        return self.num if axis == "expert" else 1


@pytest.mark.parametrize(
    ("fields", "num_experts", "form"),
    [
        ({}, E, "ragged"),
        ({}, UNROLLED + 1, "gather"),
        ({"compiled": True}, E, "gather"),
        ({"mapped_axes": ("stage",)}, E, "gather"),
        ({"compiled": True, "rules": Parts(1)}, E, "gather"),
        ({"compiled": True, "rules": Parts(2)}, E, "one_hot"),
    ],
)
def test_the_form_suits_the_devices(draw, monkeypatch, fields, num_experts, form):
    def taken(*args: Any, **inputs: Any) -> Any:
        raise StopIteration(form)

    monkeypatch.setitem(dispatch.FORMS, form, taken)
    layer = mixture(num_experts=num_experts).build()
    with pytest.raises(StopIteration, match=form):
        context.apply(layer, draw(layer), X, call=call(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"compiled": True}, "XLA compiles"), ({"mapped_axes": ("stage",)}, "are vectorized")],
)
def test_ragged_is_refused_where_shapes_have_to_be_known(draw, fields, message):
    layer = mixture(dispatch="ragged").build()
    with pytest.raises(ParamError, match=f"dispatch='ragged'.*{message}"):
        context.apply(layer, draw(layer), X, call=call(**fields))


@pytest.mark.parametrize("form", ["auto", "gather", "one_hot"])
@pytest.mark.parametrize("router", [SwitchRouter, TopNRouter, HashRouter])
def test_steps_drop_nothing(draw: Draw, router: type, form: str) -> None:
    whole = mixture(router=router, capacity_factor=float(E)).build()
    layer, weights = mixture(router=router, min_capacity=1, dispatch=form).build(), draw(whole)
    tokens, found, index = np.arange(T, dtype="i")[None], [], 0
    for size in (1, 3, 2):
        here = slice(index, index + size)
        y, _ = context.apply(
            layer,
            weights,
            X[:1, here],
            tf.constant(index),
            token_ids=tokens[:, here],
            method="step",
        )
        found.append(y)
        index += size
    wanted, _ = context.apply(whole, weights, X[:1], token_ids=tokens)
    np.testing.assert_allclose(tf.concat(found, axis=1), wanted, rtol=1e-5, atol=1e-6)


def test_no_step_is_taken_where_experts_choose(draw: Draw) -> None:
    layer = mixture(router=ExpertChoiceRouter).build()
    with pytest.raises(ParamError, match="ExpertChoiceRouter sends a token depends on later"):
        context.apply(layer, draw(layer), X[:1, :1], tf.constant(0), method="step")


@pytest.mark.parametrize("xla", [False, True])
def test_a_step_of_one_token_reads_only_its_experts(with_weights, xla: bool) -> None:
    layer, weights = with_weights(mixture().build())
    step = tf.function(
        lambda weights: context.apply(
            layer, weights, X[:1, :1], tf.constant(0), method="step", call={"compiled": xla}
        )[0],
        jit_compile=xla,
    )
    y, good = step(weights), 0
    for e in range(E):
        broken = {
            k: tf.concat([v[:e], np.nan * v[e : e + 1], v[e + 1 :]], 0) if "experts" in k else v
            for k, v in weights.items()
        }
        good += bool(tf.reduce_all(step(broken) == y))
    assert good == E - 2  # of a token with two choices


def test_weights_have_the_names_of_single_experts_in_a_stack_and_in_a_scan() -> None:
    names = [
        {name for where in layer.weights() for name in path.names(where)}
        for layer in (
            kind.params(layer=mixture(), num_layers=2).build() for kind in (Stack, Repeat)
        )
    ]
    assert names[0] == names[1] >= {"layers/1/experts/3/w_in", "layers/0/router/w"}


@pytest.mark.parametrize(
    ("fields", "computed"),
    [
        ({"capacity_factor": 2.0}, 2 * B * T),  # two choices, each with room
        ({"capacity_factor": 1.0}, B * T),
        ({"capacity_factor": 9.0}, 2 * B * T),
        ({"router": SwitchRouter, "capacity_factor": 9.0}, B * T),
        ({"router": ExpertChoiceRouter, "capacity_factor": 2.0}, 2 * B * T),
    ],
)
def test_flops_are_those_of_the_experts_that_tokens_see(fields, computed):
    layer = mixture(num_experts=3, min_capacity=1, **fields).build()
    assert layer.flops(X.shape) == 2 * D * 5 * 3 * computed + 2 * D * 3 * B * T


def test_flops_are_those_of_the_traced_graph_where_all_slots_are_full(traced_flops):
    fields = {"num_experts": 3, "capacity_factor": 2.0, "dispatch": "gather"}
    layer = mixture(**fields).build()
    one_copy = layer.experts.flops([12, 1, D])  # left in the graph by `vectorized_map`, never run
    assert layer.flops(X.shape) == traced_flops(layer, X) - one_copy > 0


@pytest.mark.parametrize("stack", ["Stack", "Repeat"])
def test_one_flag_makes_a_model_sparse(stack: str) -> None:
    sets = ["FeedForward=MoE(expert=_, num_experts=8)", f"Stack={stack}"]
    model = lingo.get("lm.source.tiny", *sets).build().learner.task.model
    mixtures = [layer for layer in model.tree() if isinstance(layer, MoE)]
    assert len(mixtures) == (4 if stack == "Stack" else 1)
    assert all(isinstance(layer.experts, FeedForward) for layer in mixtures)


@pytest.mark.parametrize("group_size", [None, 3])
def test_an_evaluation_counts_the_tokens_that_each_expert_computes(draw: Draw, group_size) -> None:
    layer = mixture(capacity_factor=1.0, min_capacity=1, count_tokens=5, group_size=group_size)
    built = layer.build()
    weights = draw(built)
    ids = np.array([[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [4, 4, 4, 4, 4, 4]], "i")
    inputs = CallInputs(segments=tf.constant(SEGMENTS), token_ids=tf.constant(ids))
    size = group_size or T
    tokens = Tokens(tf.constant(SEGMENTS > 0), None, size)
    capacity = built._capacity(size, training=False)
    own = {name.partition("/")[2]: w for name, w in weights.items() if name.startswith("router/")}
    router = layer.router.copy().set(dim=D, num_experts=E).build()
    routing, _ = context.apply(router, own, X, tokens=tokens, capacity=capacity)
    wanted = np.zeros([E, 5])
    experts, slots = (np.reshape(x, [B, T, -1]) for x in (routing.expert, routing.slot))
    for b, t, k in np.argwhere(slots >= 0):
        if ids[b, t] < 5:
            wanted[experts[b, t, k], ids[b, t]] += 1
    assert wanted.sum() > 5
    _, sides = context.apply(built, weights, X, inputs=inputs)
    np.testing.assert_array_equal(sides.metrics["experts/moe"]["expert_tokens"], wanted)
    for training, given in ((True, inputs), (False, inputs._replace(token_ids=None))):
        now = call(training=training)
        _, sides = context.apply(built, weights, X, inputs=given, call=now)
        assert "experts/moe" not in sides.metrics


def test_models_pass_token_ids_to_a_mixture_that_counts_them() -> None:
    assert mixture(count_tokens=5).build().batch_requirements().token_ids
    assert not mixture().build().batch_requirements().token_ids
    with pytest.raises(ParamError, match="count_tokens"):
        mixture(count_tokens=0).build()
