"""A mixture of experts against the dense network that multiplies as much, and its own other forms.

A turn is a layer's output, and the gradients of its input and weights. The dense network is as wide
as the experts that a token sees, two, are together. Capacity 1.25 is read both ways: as 1.25 S / E
tokens an expert, the convention here and in the papers, where at most five choices in eight find
room; and as 1.25 times its share of all choices, 2.5 S / E, where almost all do.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import context
from lingo.layers.feed_forward import FeedForward
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.token_choice import TopNRouter
from lingo.learner.state import initial_value
from lingo.ops import random
from tools.harness import Report, Rival, Turns, at_most, choose, measure

ROUNDS = choose(10, small=1)
CHOICES = 2
CAPACITY_FACTORS = choose((1.25, CHOICES * 1.25), small=(1.25,))
NUM_EXPERTS = choose((8, 64), small=(4,))
WANTED = {"dense": at_most(1.20), "one_hot": at_most(0.75)}


class Size(NamedTuple):
    """The size of what is computed."""

    rows: int = 1  # of a batch, each a group
    length: int = 4096  # tokens of a row
    dim: int = 512  # width of a token's vector
    hidden_dim: int = 2048  # of an expert


SIZE = choose(Size(), small=Size(length=32, dim=8, hidden_dim=16))

FORMS = {  # name: dispatch, and whether by XLA
    "ragged": ("ragged", False),
    "gather": ("gather", False),
    "gather, XLA": ("gather", True),
    "one_hot": ("one_hot", False),
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
    def compute(x: tf.Tensor, weights: Any) -> Any:
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
            compute(x, weights)[0].numpy()


def compare(size: Size, report: Report, *, num_experts: int, capacity_factor: float) -> None:
    """Compares each form with the dense network, and with `one_hot`."""
    rivals: dict[str, Rival] = {
        "dense": functools.partial(gradients, params=dense(size), size=size)
    }
    for name, (dispatch, xla) in FORMS.items():
        params = mixture(
            size, num_experts=num_experts, capacity_factor=capacity_factor, dispatch=dispatch
        )
        rivals[name] = functools.partial(gradients, params=params, size=size, xla=xla)
    measured = measure(rivals, num=ROUNDS)
    title = f"{num_experts} experts of {capacity_factor} S / E"
    report.times(title, measured)
    costs = measured.rounds
    for ours in ("ragged", "gather", "gather, XLA"):
        for theirs, wanted in WANTED.items():
            wanted = wanted if ours == "ragged" else None
            report.ratio(f"{ours} / {theirs}, {title}", costs[ours], costs[theirs], wanted)


def run(report: Report) -> None:
    """Compares mixtures of several sizes."""
    print(SIZE)
    for num_experts, capacity_factor in itertools.product(NUM_EXPERTS, CAPACITY_FACTORS):
        compare(SIZE, report, num_experts=num_experts, capacity_factor=capacity_factor)
