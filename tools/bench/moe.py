"""A mixture of experts against the dense network that multiplies as much, and its own other forms.

A turn is a layer's output, and the gradients of its input and weights. The dense network is as wide
as the experts that a token sees, two, are together. Capacity 1.25 is read both ways: as 1.25 S / E
tokens an expert, the convention here and in the papers, where no more than five choices in eight
find room; and as 1.25 times its share of all choices, 2.5 S / E, where almost all do.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import context
from lingo.layers.feed_forward import FeedForward
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.top_n import TopNRouter
from lingo.learner.state import initial_value
from lingo.ops import random
from tools.bench.lm import report_ratio
from tools.bounds import Bounds, at_most
from tools.turns import Rival, Turns, measure, spread

ROUNDS = 10
CHOICES = 2
CAPACITY_FACTORS = (1.25, CHOICES * 1.25)
NUM_EXPERTS = (8, 64)
WANTED = {"dense": at_most(1.20), "one_hot": at_most(0.75)}


class Size(NamedTuple):
    """Of what is computed.

    Attributes:
        rows: of a batch, each a group.
        length: tokens of a row.
        dim: width of a token's vector.
        hidden_dim: of an expert.
    """

    rows: int = 1
    length: int = 4096
    dim: int = 512
    hidden_dim: int = 2048


class Form(NamedTuple):
    """How lingo computes a mixture.

    Attributes:
        dispatch: the field of `MoE`.
        xla: whether by XLA.
    """

    dispatch: str
    xla: bool = False


FORMS = {
    "ragged": Form("ragged"),
    "gather": Form("gather"),
    "gather, XLA": Form("gather", xla=True),
    "one_hot": Form("one_hot"),
}


def mixture(size: Size, *, num_experts: int, capacity_factor: float, dispatch: str) -> Params:
    """Returns the mixture."""
    return MoE.params(
        dim=size.dim,
        expert=FeedForward.params(hidden_dim=size.hidden_dim),
        num_experts=num_experts,
        router=TopNRouter.params(num_choices=CHOICES),
        capacity_factor=capacity_factor,
        dispatch=dispatch,
    )


def dense(size: Size) -> Params:
    """Returns the network that multiplies as much."""
    return FeedForward.params(dim=size.dim, hidden_dim=CHOICES * size.hidden_dim)


def gradients(turns: Turns, *, params: Params, size: Size, xla: bool = False) -> None:
    """A turn is a forward and a backward pass on other tokens than the one before."""
    layer = params.build()
    weights = {k: tf.constant(initial_value(spec, 0)) for k, spec in layer.weights().items()}
    call = {"training": True, "key": random.root_key(0), "rows": tf.range(size.rows)}
    call |= {"compiled": xla}

    @tf.function(autograph=False, jit_compile=xla)
    def computed(x: tf.Tensor, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            y, sides = context.apply(layer, weights, x, call=call)
            losses = list(sides.losses.values())
        return y, tape.gradient([y, *losses], [x, weights])

    draw = np.random.default_rng(0)
    shape = [size.rows, size.length, size.dim]
    while True:
        x = tf.constant(draw.standard_normal(shape, np.float32))
        with turns.turn():
            computed(x, weights)[0].numpy()


def report(size: Size, bounds: Bounds, *, num_experts: int, capacity_factor: float) -> None:
    """Prints what each form costs, and ratios."""
    made = functools.partial(
        mixture, size, num_experts=num_experts, capacity_factor=capacity_factor
    )
    rivals: dict[str, Rival] = {
        "dense": functools.partial(gradients, params=dense(size), size=size)
    } | {
        name: functools.partial(
            gradients, params=made(dispatch=form.dispatch), size=size, xla=form.xla
        )
        for name, form in FORMS.items()
    }
    costs = measure(rivals, num=ROUNDS).rounds
    print(f"\n{num_experts} experts of {capacity_factor} S / E tokens each")
    print(f"{'seconds':32}{'least':>8} {'median':>8} {'most':>8}   processor seconds, median")
    for name, turns in costs.items():
        wall = spread([cost.seconds for cost in turns])
        cpu = spread([cost.cpu_seconds for cost in turns]).median
        print(f"{name:32}{wall}   {cpu:25.3f}")
    print(f"{'ratio':32}{'least':>8} {'median':>8} {'most':>8}   of processor seconds   wanted")
    for ours in ("ragged", "gather", "gather, XLA"):
        for theirs, wanted in WANTED.items():
            wanted = wanted if ours == "ragged" else None
            report_ratio(f"{ours} / {theirs}", costs[ours], costs[theirs], bounds, wanted)


def main() -> int:
    """Prints everything; returns the exit code."""
    size, bounds = Size(), Bounds()
    print(size, f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors at the beginning")
    for num_experts in NUM_EXPERTS:
        for capacity_factor in CAPACITY_FACTORS:
            report(size, bounds, num_experts=num_experts, capacity_factor=capacity_factor)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    return bounds.exit_code()
