"""A trained model whose weights are ready before a program reads them, also stored in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.layers.context import Call
from lingo.layers.layer import Layer
from lingo.layers.wrap.fold import fold_weights, quantize_weights
from lingo.learner.state import Learner, TrainState, WhichWeights
from lingo.learner.step import Placement
from lingo.runtimes.local import LocalProgram


def fold_state(task: Layer, state: TrainState) -> TrainState:
    """Returns a state without slots whose weights are those that products multiply.

    Weights are program path -> array [*stacked axes, ...], float32 in `state`, in the result of the
    layers' dtype.
    """
    return _ready_state(lambda call: fold_weights(task, call).weights, state)


def quantize_state(task: Layer, state: TrainState) -> TrainState:
    """Returns the same with the weights of products in 8 bits, as of `quantize_weights`."""
    return _ready_state(lambda call: quantize_weights(task, call), state)


def _ready_state(compute: Callable[[Call], Mapping[str, Any]], state: TrainState) -> TrainState:
    # eagerly: Grappler, which the programs of runs do without, divides otherwise in the last bit
    weights, statistics = tf.nest.map_structure(tf.convert_to_tensor, (state.weights, state.state))
    ready = compute(Call(weights=weights, state=statistics))
    arrays = {where: np.asarray(value) for where, value in ready.items()}
    return TrainState(state.step, arrays, {}, state.state)


class Int8Program(LocalProgram):
    """Evaluates, predicts and decodes on one device with the state of `quantize_state`."""

    def __init__(self, learner: Learner, state: TrainState, *, compiled: bool) -> None:
        super().__init__(learner, state, Placement(compiled=compiled, weights_ready=True))

    def _select(self, weights: WhichWeights) -> TrainState:
        return self._read()
