"""Every form of dispatch is the sum over choices of gate * expert, and so are its gradients.

Axes: G groups, S tokens of a group, K choices, E experts, C slots, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.moe import dispatch
from lingo.layers.moe.router import Routing

G, S, E, D = 2, 5, 6, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=[G, S, D]).astype("f")
W = DRAW.normal(size=[E, D, D]).astype("f")
NUMBERS = 100 + np.arange(G * S, dtype="i").reshape(G, S)
FORMS = ["ragged", "gather", "one_hot"]


def drawn(num_choices: int, capacity: int, *, padding: bool = False) -> Routing:
    """Returns a routing where tokens find room in order; one of padding finds none."""
    draw = np.random.default_rng(num_choices)
    expert = np.stack([[draw.permutation(E)[:num_choices] for _ in range(S)] for _ in range(G)])
    gate = draw.uniform(0.1, 1, [G, S, num_choices]).astype("f")
    slot, taken = np.full_like(expert, -1), np.zeros([G, E], int)
    for g, s, k in np.ndindex(*expert.shape):
        if taken[g, expert[g, s, k]] < capacity and not padding:
            slot[g, s, k] = taken[g, expert[g, s, k]]
            taken[g, expert[g, s, k]] += 1
    gate[slot < 0] = 0.0
    return Routing(tf.constant(expert, tf.int32), tf.constant(slot, tf.int32), gate, capacity)


def one_by_one(routing: Routing) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the outputs and gradients of all experts on all tokens, of which few are summed."""
    x, w, gate = map(tf.constant, (X, W, routing.gate))
    with tf.GradientTape() as tape:
        tape.watch([x, w, gate])
        outputs = tf.sin(tf.einsum("gsd,edf->gsef", x, w))
        outputs += NUMBERS[..., None, None].astype("f")
        chosen = tf.gather(outputs, routing.expert, batch_dims=2)
        y = tf.reduce_sum(tf.where(routing.slot >= 0, gate, 0.0)[..., None] * chosen, axis=2)
    return y, tape.gradient(y, [x, w, gate], output_gradients=tf.cos(tf.constant(X)))


def pieces(vectors: list[Any], numbers: list[Any], w: Any) -> list[Any]:
    return [
        tf.sin(x @ w[e]) + tf.cast(n, tf.float32)[:, None, None]
        for e, (x, n) in enumerate(zip(vectors, numbers, strict=True))
    ]


def slots(vectors: Any, numbers: Any, w: Any) -> Any:
    products = tf.sin(tf.einsum("epod,edf->epof", vectors, w))
    return products + tf.cast(numbers, tf.float32)[:, :, None, None]


def traced(form: str, routing: Routing) -> Any:
    """Returns a function of x, the experts' weights and the gates: outputs, and their gradients."""
    experts = pieces if form == "ragged" else slots

    @tf.function(autograph=False)
    def run(x: Any, w: Any, gate: Any) -> Any:
        with tf.GradientTape() as tape, context.enter_call(context.Call(weights={})):
            tape.watch([x, w, gate])
            y = dispatch.FORMS[form](
                x,
                tf.constant(NUMBERS),
                routing._replace(gate=gate),
                num_experts=E,
                experts=lambda *args: experts(*args, w),
            )
        return y, tape.gradient(y, [x, w, gate], output_gradients=tf.cos(tf.constant(X)))

    return run


def computed(form: str, routing: Routing) -> tuple[Any, list[Any]]:
    return traced(form, routing)(*map(tf.constant, (X, W, routing.gate)))


@pytest.mark.parametrize("capacity", [1, 2, S])
@pytest.mark.parametrize("num_choices", [1, 2, dispatch.FEW + 1])
@pytest.mark.parametrize("form", FORMS)
def test_a_token_gets_the_sum_over_its_choices(form: str, num_choices: int, capacity: int) -> None:
    routing = drawn(num_choices, capacity)
    (y, gradients), (wanted, wanted_gradients) = computed(form, routing), one_by_one(routing)
    np.testing.assert_allclose(y, wanted, rtol=2e-6, atol=1e-6)
    (of_x, of_w, of_gate), (wanted_x, wanted_w, wanted_gate) = gradients, wanted_gradients
    np.testing.assert_allclose(of_x, wanted_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_w, wanted_w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_gate, wanted_gate, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_sent_nowhere_gets_zeros_and_no_gradient(form: str) -> None:
    y, gradients = computed(form, drawn(2, 2, padding=True))
    for value in (y, *gradients):
        np.testing.assert_array_equal(value, np.zeros(value.shape))


def test_a_ragged_expert_computes_no_more_than_it_is_sent() -> None:
    routing, sizes = drawn(1, 2), []

    def experts(vectors: list[Any], numbers: list[Any]) -> list[Any]:
        sizes.extend(len(n) for n in numbers)
        return vectors

    x, numbers = tf.constant(X), tf.constant(NUMBERS)
    with context.enter_call(context.Call(weights={})):
        dispatch.dispatch_ragged(x, numbers, routing, num_experts=E, experts=experts)
    sent = routing.expert.numpy()[routing.slot.numpy() >= 0]
    assert sizes == np.bincount(sent, minlength=E).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_few_choices_move_no_vector_by_a_scatter(form: str) -> None:
    graph = traced(form, drawn(2, 2)).get_concrete_function(X, W, np.ones([G, S, 2], "f")).graph
    outputs = [output for op in graph.get_operations() for output in op.outputs[:1]]
    vectors = {output.op.type for output in outputs if output.dtype == tf.float32}
    assert not [kind for kind in vectors if "Scatter" in kind or "Segment" in kind]
