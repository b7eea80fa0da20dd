"""What tests of routers share: a call whose logits are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import context
from lingo.layers.moe.router import Router, Tokens
from lingo.ops import random


class Routed(NamedTuple):
    """What a router decided, as NumPy arrays, and what it handed out.

    Attributes:
        expert, slot, gate: [G, S, K], as in `Routing`.
        gates: [G, S, E], what each expert's output is multiplied by.
        sides: losses, metrics, moments.
    """

    expert: np.ndarray
    slot: np.ndarray
    gate: np.ndarray
    gates: np.ndarray
    sides: context.SideOutputs

    def mean(self, metric: str) -> float:
        state = self.sides.metrics[metric]
        return float(state["sum"]) / float(state["weight"])


@pytest.fixture
def route() -> Callable[..., Routed]:
    """Calls a router on logits [B, T, E]: they are its input, and its weights the identity."""

    def route(
        router: Router,
        logits: np.ndarray,
        *,
        capacity: int,
        valid: np.ndarray | None = None,
        ids: np.ndarray | None = None,
        group_size: int | None = None,
        training: bool = False,
        rows: np.ndarray | None = None,
        seed: int = 1,
    ) -> Routed:
        x = tf.constant(logits, tf.float32)
        batch, length, num_experts = x.shape
        valid = np.ones([batch, length], bool) if valid is None else valid
        call = {
            "training": training,
            "key": random.root_key(seed),
            "rows": tf.constant(np.arange(batch) if rows is None else rows, tf.int32),
        }
        weights = {name: tf.eye(num_experts) for name in router.weights()}
        tokens = Tokens(
            tf.constant(valid), None if ids is None else tf.constant(ids), group_size or length
        )
        (expert, slot, gate, _), sides = context.apply(
            router, weights, x, tokens=tokens, capacity=capacity, call=call
        )
        gates: Any = tf.reduce_sum(tf.one_hot(expert, num_experts) * gate[..., None], axis=2)
        return Routed(expert.numpy(), slot.numpy(), gate.numpy(), gates.numpy(), sides)

    return route


@pytest.fixture
def drawn() -> Callable[..., np.ndarray]:
    """Gives the random numbers that a router draws for its choices: float32 [B, T, num]."""

    def drawn(router: Router, logits: np.ndarray, num: int, seed: int = 1) -> np.ndarray:
        call = {"key": random.root_key(seed), "rows": tf.range(len(logits))}
        x = tf.constant(logits, tf.float32)
        return context.apply(router, {}, "choices", x, num, method="draw", call=call)[0].numpy()

    return drawn
