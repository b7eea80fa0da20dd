"""What an evaluation shows in TensorBoard besides its metrics: images, histograms, texts, tables.

    of each metric      Task.metric_summaries, from its state over all examples
    of some examples    Task.summaries, from the first batch of the input and its predictions

Axes: B examples.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection.trace import trace_predictions
from lingo.learner.task import Task, check_summaries
from lingo.metrics.media import Media
from lingo.metrics.metric import State
from lingo.runtimes.program import Program, explain_program_errors

Arrays = dict[str, np.ndarray]

_log = logging.getLogger(__name__)


def summarize(
    experiment: Experiment,
    program: Program,
    input: Input,
    states: Mapping[str, State],
    metrics: Collection[str],
) -> dict[str, Media | float]:
    """Returns what the task shows of an evaluation; all processes call this together.

    `states` are those of the metrics over all examples, `metrics` the names of their results. An
    exception of the task's methods is a warning: it must not end a run that has trained for hours.
    """
    task, summaries = experiment.task, dict[str, Media | float]()
    for name, state in states.items():
        with _warn_on_exception(task.metric_summaries):
            of_metric = task.metric_summaries(name, state)
            check_summaries(task.metric_summaries, of_metric)
            summaries |= of_metric
    if _shows_examples(task) and input.num_batches():
        batch = input.batch(0)
        predictions = _predict(experiment, program, batch)
        with _warn_on_exception(task.summaries):
            of_examples = task.summaries(*_first_examples(experiment, batch, predictions))
            check_summaries(task.summaries, of_examples, metrics=metrics)
            summaries |= of_examples
    return summaries


def check_examples(experiment: Experiment, input: Input, *, metrics: Collection[str]) -> None:
    """Calls `Task.summaries` for an input, with predictions of zeros, before the first step.

    Raises ParamError if what it returns has another form than `Task` documents, and whatever it
    raises itself.
    """
    task = experiment.task
    if not (_shows_examples(task) and input.num_batches()):
        return
    batch = input.batch(0)
    shapes = trace_predictions(experiment, input.specs())
    predictions = {
        name: np.zeros(
            [1 if size is None else size for size in one.shape], one.dtype.as_numpy_dtype
        )
        for name, one in shapes.items()
    }
    examples = _first_examples(experiment, batch, predictions)
    check_summaries(task.summaries, task.summaries(*examples), metrics=metrics)


def _shows_examples(task: Task) -> bool:
    return type(task).summaries is not Task.summaries


def _predict(experiment: Experiment, program: Program, batch: Mapping[str, np.ndarray]) -> Arrays:
    """Returns the predictions for a whole batch, and its weights, {name: [B, ...]}."""
    own = program.example_slice(len(batch["rows"]))
    with explain_program_errors("prediction for summaries"):
        return program.predict(
            {name: array[own] for name, array in batch.items()},
            weights=experiment.p.evaluate.weights,
        )


def _first_examples(
    experiment: Experiment, batch: Mapping[str, np.ndarray], predictions: Mapping[str, np.ndarray]
) -> tuple[Arrays, Arrays]:
    """Returns the first examples of a batch, without padding, and their predictions."""
    is_example = np.asarray(batch["weights"]) > 0
    first = np.flatnonzero(is_example)[: experiment.p.summary.num_examples]
    outputs = {name: array for name, array in predictions.items() if name != "weights"}

    def select(arrays: Mapping[str, np.ndarray]) -> Arrays:
        return {name: np.asarray(array)[first] for name, array in arrays.items()}

    return select(batch), select(outputs)


@contextlib.contextmanager
def _warn_on_exception(method: Callable[..., Any]) -> Iterator[None]:
    """Turns an exception inside, of a user's method, into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever the user's method raises
        name, kind = method.__qualname__, type(error).__name__
        _log.warning("%s: %s: %s; this evaluation shows nothing of it", name, kind, error)
