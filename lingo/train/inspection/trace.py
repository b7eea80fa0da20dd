"""Symbolic traces: an experiment's training and evaluation step as graphs, without any memory.

Weights are placeholders, so a trillion-parameter model traces on a laptop. What a trace finds is
whatever TensorFlow would refuse: shapes, types, layers that do not fit together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.lazy import tf
from lingo.train.experiment import Experiment
from lingo.train.placement import Placement
from lingo.train.state import TrainState, structure
from lingo.train.step import train_step
from lingo.train.task import evaluated


class Traced(NamedTuple):
    """The graphs of one experiment.

    Attributes:
        train: `tf.Graph` of the training step.
        evaluate: `tf.Graph` of the metrics of a batch.
    """

    train: Any
    evaluate: Any


def trace(experiment: Experiment) -> Traced:
    """Traces the training and evaluation step of a built experiment."""
    learner = experiment.learner
    state = structure(learner, lambda shape: tf.TensorSpec(shape, tf.float32))
    state = state._replace(step=tf.TensorSpec([], tf.int32))
    batch = {
        name: tf.TensorSpec(shape, dtype)
        for name, (shape, dtype) in experiment.train_input.specs().items()
    }

    place = Placement(compiled=experiment.mesh.compiles)

    def train(state: TrainState, batch: Any) -> Any:
        return train_step(learner, state, batch, place)

    def evaluate(state: TrainState, batch: Any) -> Any:
        return evaluated(learner.task, state.weights, state.state, batch, place)

    def graph(function: Any) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(state, batch).graph

    return Traced(graph(train), graph(evaluate))
