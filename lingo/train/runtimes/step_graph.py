"""The graph of one step, for people to look at: no runtime's loops, parts or replicas in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lingo.lazy import tf
from lingo.train.state import Learner, TrainState, structure
from lingo.train.step import train_step


def step_graph(learner: Learner, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> tf.Graph:
    """Returns the graph of one step on one device; the state is placeholders.

    Args:
        learner: what is trained.
        specs: name -> (shape, dtype) of a batch.
    """

    def step(state: TrainState, batch: Mapping[str, tf.Tensor]) -> Any:
        return train_step(learner, state, batch)

    state = structure(learner, lambda shape: tf.TensorSpec(shape, tf.float32))
    state = state._replace(step=tf.TensorSpec([], tf.int32))
    batch = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in specs.items()}
    return tf.function(step, autograph=False).get_concrete_function(state, batch).graph
