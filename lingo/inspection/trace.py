"""Symbolic traces: an experiment's training and evaluation steps as graphs, without weights.

Weights are placeholders, so a trillion-parameter model traces on a laptop. A trace finds the errors
that TensorFlow would raise: wrong shapes and types, layers that do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lingo.contract import Experiment
from lingo.data.array_spec import Specs
from lingo.learner.placement import Placement
from lingo.learner.state import TrainState
from lingo.learner.step import evaluate_batch, graph_of, predict_batch, step_graph, trace_function
from lingo.learner.task_check import check_sums


class Traced(NamedTuple):
    """The TensorFlow graphs of one experiment's steps."""

    train: Any  # `tf.Graph` of the training step
    evaluate: Any  # `tf.Graph` of the evaluation step, which computes a batch's metrics


def trace(experiment: Experiment) -> Traced:
    """Traces the training and evaluation steps of a built experiment."""
    learner, specs = experiment.learner, experiment.train_input.specs()
    place = Placement(compiled=experiment.runtime.compiles)

    check_sums(learner, specs, place)
    train = step_graph(learner, specs, place)
    return Traced(train, graph_of(_evaluation(experiment), learner, specs))


def trace_metrics(experiment: Experiment, specs: Specs) -> dict[str, Any]:
    """Traces the metrics of a batch with `specs`: metric name -> metric state, symbolic scalars.

    Raises ParamError if the states do not have the form that `Task.metrics` documents.
    """
    return trace_function(_evaluation(experiment), experiment.learner, specs).structured_outputs


def trace_predictions(experiment: Experiment, specs: Specs) -> dict[str, Any]:
    """Traces the predictions for a batch with `specs`: name -> symbolic tensor.

    The example weights of the batch are included as `weights`. Raises ParamError if the predictions
    do not have the form that `Task.predict` documents.
    """
    task, place = experiment.task, Placement(compiled=experiment.runtime.compiles)

    def predict(state: TrainState, batch: Any) -> dict[str, Any]:
        return predict_batch(task, state.weights, state.state, batch, place)

    return trace_function(predict, experiment.learner, specs).structured_outputs


def _evaluation(experiment: Experiment) -> Callable[[TrainState, Any], Any]:
    task, place = experiment.task, Placement(compiled=experiment.runtime.compiles)
    return lambda state, batch: evaluate_batch(task, state.weights, state.state, batch, place)
