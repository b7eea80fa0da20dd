"""A trained model whose weights are ready before a program reads them: rounded, or int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.context import Call
from lingo.layers.layer import Layer
from lingo.layers.quantization.fold import dequantize_weights, fold_weights, quantize_weights
from lingo.learner.state import Learner, Placement, TrainState, WhichWeights
from lingo.runtimes.local import Local, LocalProgram
from lingo.runtimes.runtime import Runtime


def fold_state(task: Layer, state: TrainState) -> TrainState:
    """Returns a state without slots whose weights are those that products multiply.

    Weights are program path -> array [*stacked axes, ...], float32 in `state`, in the result of the
    layers' dtype.
    """
    return _ready_state(lambda call: fold_weights(task, call).weights, state)


def quantize_state(task: Layer, state: TrainState) -> TrainState:
    """Returns `fold_state`, with the weights of products as int8 and scales."""
    return _ready_state(lambda call: quantize_weights(task, call), state)


def dequantize_state(task: Layer, state: TrainState) -> TrainState:
    """Returns a state of `quantize_state` in the form of `fold_state`, rounded as it is."""
    weights = dequantize_weights(state.weights)
    arrays = {w: np.asarray(tf.cast(weights[w], s.dtype)) for w, s in task.weights().items()}
    return state._replace(weights=arrays)


def check_one_device(runtime: Runtime) -> None:
    """Raises ParamError if a runtime is not the one device of an `Int8Program`."""
    message = "quantize='int8_weights' computes on one device, not on"
    if not isinstance(runtime, Local):
        raise ParamError(f"{message} {type(runtime).__name__}: set runtime=Local")
    if (num := runtime.p.stage_devices) > 1:
        raise ParamError(f"{message} stage_devices={num}: set runtime.stage_devices=1")


def _ready_state(compute: Callable[[Call], Mapping[str, Any]], state: TrainState) -> TrainState:
    # eagerly: Grappler, which the programs of runs do without, divides otherwise in the last bit
    weights, statistics = tf.nest.map_structure(tf.convert_to_tensor, (state.weights, state.state))
    ready = compute(Call(weights=weights, state=statistics))
    arrays = {where: np.asarray(value) for where, value in ready.items()}
    return TrainState(state.step, arrays, {}, state.state)


class Int8Program(LocalProgram):
    """Evaluates, predicts and decodes on one device with the state of `quantize_state`."""

    def __init__(self, learner: Learner, state: TrainState, runtime: Runtime) -> None:
        """Takes the run's runtime, whose `xla` and `deterministic` count if it is a `Local`."""
        compiled = False
        if isinstance(runtime, Local):
            runtime.set_determinism()
            compiled = runtime.compiles
        super().__init__(learner, state, Placement(compiled=compiled, weights_ready=True))

    def _read(self, weights: WhichWeights) -> TrainState:
        return super()._read("trained")  # it has no averages: its weights are those to evaluate
