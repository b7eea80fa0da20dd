"""The graph of one step, traced from shapes alone, without a runtime's loops, parts or replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lingo.config.lazy import tf
from lingo.data.array_spec import Specs
from lingo.learner.state import Learner, TrainState, map_shapes
from lingo.learner.step import ONE_DEVICE, Placement, train_step


def step_graph(learner: Learner, specs: Specs, place: Placement = ONE_DEVICE) -> tf.Graph:
    """Returns the graph of one step; state and batch, of these specs, are placeholders."""

    def step(state: TrainState, batch: Mapping[str, tf.Tensor]) -> Any:
        return train_step(learner, state, batch, place)

    return graph_of(step, learner, specs)


def graph_of(function: Callable[..., Any], learner: Learner, specs: Specs) -> tf.Graph:
    """Returns the graph of a function of a learner's state and a batch, which are placeholders."""
    state = map_shapes(learner, lambda shape: tf.TensorSpec(shape, tf.float32))
    state = state._replace(step=tf.TensorSpec([], tf.int32))
    batch = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in specs.items()}
    return tf.function(function, autograph=False).get_concrete_function(state, batch).graph
