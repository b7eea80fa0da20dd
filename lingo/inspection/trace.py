"""Symbolic traces: an experiment's training and evaluation steps as graphs, without weights.

Weights are placeholders, so a trillion-parameter model traces on a laptop. A trace finds the errors
that TensorFlow would raise: wrong shapes and types, layers that do not fit together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lingo.contract import Experiment
from lingo.learner.additive import check_sums
from lingo.learner.state import TrainState
from lingo.learner.step import Placement, evaluate_batch, graph_of, step_graph


class Traced(NamedTuple):
    """The graphs of one experiment."""

    train: Any  # `tf.Graph` of the training step
    evaluate: Any  # `tf.Graph` of the metrics of a batch


def trace(experiment: Experiment) -> Traced:
    """Traces the training and evaluation steps of a built experiment."""
    learner, specs = experiment.learner, experiment.train_input.specs()
    place = Placement(compiled=experiment.runtime.compiles)

    check_sums(learner, specs, place)

    def evaluate(state: TrainState, batch: Any) -> Any:
        return evaluate_batch(learner.task, state.weights, state.state, batch, place)

    return Traced(step_graph(learner, specs, place), graph_of(evaluate, learner, specs))
