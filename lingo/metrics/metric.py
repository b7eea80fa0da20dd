"""Metrics as additive states: programs add, the host divides, once.

A state is a dict of tensors or numbers that adds over examples, micro-batches, replicas, steps and
batches. `{"sum", "weight"}` is a mean in the making. Nothing is averaged before the end: a mean of
means weighs a half-empty batch like a full one. Sums are float64, so that they do not depend on how
examples were split into batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf

State = Mapping[str, Any]


def mean(total: Any, weight: Any) -> dict[str, Any]:
    """Returns the state of a mean.

    Args:
        total: sum of value x weight over examples or tokens; a number, or float of any shape.
        weight: sum of the weights; same shape.
    """
    return {"sum": total, "weight": weight}


def weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the state of a mean over examples or tokens, float64 scalars.

    Args:
        values: any shape, any type of numbers.
        weights: same shape, float.
    """
    values, weights = tf.cast(values, tf.float64), tf.cast(weights, tf.float64)
    return mean(tf.reduce_sum(values * weights), tf.reduce_sum(weights))


class Accumulator:
    """Adds states on the host, in float64.

    Attributes:
        states: name -> the sum of the states added, float64 arrays.
    """

    def __init__(self, states: Mapping[str, State] | None = None) -> None:
        """Begins with nothing, or with what was added up before."""
        self.states: dict[str, dict[str, np.ndarray]] = {}
        self.add(states or {})

    def add(self, states: Mapping[str, State]) -> None:
        """Adds name -> state of a step, or summed over several; of anything NumPy can read."""
        for name, state in states.items():
            mine = self.states.setdefault(name, {})
            for entry, value in state.items():
                mine[entry] = mine.get(entry, 0.0) + np.asarray(value, np.float64)

    def results(self) -> dict[str, float]:
        """Returns the mean of every state; see `means`."""
        return means(self.states)


def means(states: Mapping[str, State]) -> dict[str, float]:
    """Returns name -> sum / weight; a state that nothing was added to (weight 0) has none.

    Raises:
        ValueError: for a state that is not of a single mean.
    """
    results = {}
    for name, state in states.items():
        if set(state) != {"sum", "weight"} or np.ndim(state["sum"]):
            raise ValueError(f"{name} is not the state of one mean: {sorted(state)}")
        if state["weight"]:
            results[name] = float(state["sum"]) / float(state["weight"])
    return results


def perplexity(nats: float) -> float:
    """Returns e ** nats: among how many equally likely tokens the model is undecided."""
    return math.exp(nats) if nats < 700 else math.inf


def bits(nats: Any) -> Any:
    """Returns a loss in bits, a number or a tensor: of nats per byte, the bits per byte."""
    return nats / math.log(2)
