"""Metrics as additive states: programs sum the states, and Python divides once at the end.

A state is a dict of tensors or numbers that can be summed over examples, micro-batches, replicas,
steps and batches. `{"sum", "weight"}` is the state of a mean. Nothing is averaged before the end: a
mean of means would weigh a half-empty batch like a full one. Sums are float64, so that they do not
depend on how examples were split into batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf

State = Mapping[str, Any]


def mean(total: Any, weight: Any) -> dict[str, Any]:
    """Returns the state of a mean from sums of value * weight and weight, floats of any shape.

    >>> mean(6.0, 3.0)
    {'sum': 6.0, 'weight': 3.0}
    """
    return {"sum": total, "weight": weight}


def weighted_mean(values: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the state, float64 scalars, of a weighted mean over values of any shape and type.

    >>> weighted_mean(tf.constant([1.0, 3.0]), tf.constant([1.0, 1.0]))['sum'].numpy().item()
    4.0
    """
    values, weights = tf.cast(values, tf.float64), tf.cast(weights, tf.float64)
    return mean(tf.reduce_sum(values * weights), tf.reduce_sum(weights))


def add_states(sums: Mapping[str, State], states: Mapping[str, State]) -> dict[str, dict[str, Any]]:
    """Adds each state to the earlier sum of its name ({} at first), on the devices of the tensors.

    A name or entry that occurs only in `sums` or only in `states` is kept unchanged.

    >>> add_states({'loss': mean(6.0, 3.0)}, {'loss': mean(1.0, 1.0)})
    {'loss': {'sum': 7.0, 'weight': 4.0}}
    """
    added = {name: dict(state) for name, state in sums.items()}
    for name, state in states.items():
        total = added.setdefault(name, {})
        for entry, value in state.items():
            total[entry] = total[entry] + value if entry in total else value
    return added


def read_states(states: Mapping[str, State]) -> dict[str, dict[str, np.ndarray]]:
    """Returns states as NumPy arrays; their tensors may be on devices.

    >>> read_states({'loss': mean(tf.constant(6.0), tf.constant(3.0))})['loss']['sum'].item()
    6.0
    """
    return tf.nest.map_structure(np.asarray, states)


class Accumulator:
    """Sums states in NumPy, in float64."""

    def __init__(self, states: Mapping[str, State] | None = None) -> None:
        """Starts from nothing, or from the sums of an earlier accumulator."""
        self.states: dict[str, dict[str, np.ndarray]] = {}  # sums by name, arrays of any shape
        self.add(states or {})

    def add(self, states: Mapping[str, State]) -> None:
        """Adds {name: state} of one step or of several steps; entries are arrays of any shape."""
        exact = {
            name: {entry: np.asarray(value, np.float64) for entry, value in state.items()}
            for name, state in states.items()
        }
        self.states = add_states(self.states, exact)

    def results(self) -> dict[str, float]:
        """Returns the mean of every state; see `means`."""
        return means(self.states)


def means(states: Mapping[str, State]) -> dict[str, float]:
    """Returns {name: sum / weight} of scalar states, without states of weight 0.

    Raises:
        ValueError: for a state other than `sum` and `weight` of one scalar mean.

    >>> means({'loss': mean(6.0, 3.0)})
    {'loss': 2.0}
    """
    results = {}
    for name, state in states.items():
        if set(state) != {"sum", "weight"} or np.ndim(state["sum"]):
            raise ValueError(f"{name} is not the state of one mean: {sorted(state)}")
        if state["weight"]:
            results[name] = float(state["sum"]) / float(state["weight"])
    return results


def perplexity(nats: float) -> float:
    """Returns e ** nats, the perplexity of a cross-entropy; infinity from 700 nats on.

    >>> round(perplexity(1.0), 3)
    2.718
    """
    return math.exp(nats) if nats < 700 else math.inf


def bits(nats: Any) -> Any:
    """Converts nats to bits: a number, or a float tensor or array of any shape.

    >>> bits(math.log(8))
    3.0
    """
    return nats / math.log(2)
