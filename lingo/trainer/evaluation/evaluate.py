"""Evaluation makes one pass over each finite input, without its padding.

Metric states are summed in double precision. So batching changes results only as far as it changes
each example's own value: by float32 rounding, where shapes change the order of sums.

TensorBoard also shows summaries of an evaluation (images, histograms, texts, tables):

    each metric      Task.metric_summaries, from the metric's state over all examples
    some examples    Task.summaries, from an input's first batch and its predictions; and
                     Input.summaries, such as the sound of recordings
    an average       a table of the averaged inputs' metrics

Axes: B examples.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.contract import Experiment
from lingo.data.array_spec import marked_task
from lingo.data.derived_input import DerivedInput
from lingo.data.input import Input
from lingo.data.prefetch import Prefetch
from lingo.inspection.trace import trace_metrics, trace_predictions
from lingo.learner.state import WhichWeights, restore_state
from lingo.learner.task import Task, check_results, check_summaries
from lingo.metrics.class_names import use_class_names
from lingo.metrics.input_picture import summarize_inputs
from lingo.metrics.media import Media, Table
from lingo.metrics.metric import State
from lingo.runtimes.program import Program, explain_program_errors
from lingo.trainer.evaluation.answers import (
    Answer,
    ShowProgress,
    decode_answers,
    hide_progress,
    score_answers,
)
from lingo.trainer.evaluation.generate import Between

_TOTAL = "loss/total"
_NUM_SHOWN = 10  # number of answers to show for an input with `measures`

Arrays = dict[str, np.ndarray]

_log = logging.getLogger(__name__)


class EvaluationResult(NamedTuple):
    """The results of an evaluation on one input, or their average over several inputs."""

    input: str  # name of the input or of the average
    metrics: dict[str, float]  # over all examples, by name
    summaries: dict[str, Media | float]  # shown in TensorBoard only, by name
    answers: list[Answer]  # the first `num_shown` answers, to be shown


def evaluate(
    task: Task,
    program: Program,
    input: Input,
    *,
    weights: WhichWeights = "trained",
    between: Between = iter,
) -> dict[str, float]:
    """Returns the metrics of a program's task over all examples of a finite input.

    Raises DataError if the input fails, ProgramError if the program fails.
    """
    states = sum_metrics(program, input, weights=weights, between=between)
    return read_results(task.select(input.specs()), states)


def sum_metrics(
    program: Program, input: Input, *, weights: WhichWeights, between: Between
) -> dict[str, dict[str, np.ndarray]]:
    """Returns metric -> state, with float64 arrays, added up over an input.

    Threads make batches ahead. The devices add up the states, so that their sums are read only
    once, after the last batch.
    """
    sums: Mapping[str, State] = {}
    steps = range(input.num_batches())
    spans = (range(step, step + 1) for step in steps)
    with Prefetch(input, spans=spans, rows=program.example_slice) as items:
        for step, (_, batches) in zip(between(steps), items, strict=True):
            batch = {name: values[0] for name, values in batches.items()}
            with explain_program_errors(f"evaluation, batch {step}"):
                sums = program.evaluate(batch, weights=weights, sums=sums)
    with explain_program_errors("evaluation"):
        return program.read_sums(sums)


def read_results(task: Task, states: Mapping[str, State]) -> dict[str, float]:
    """Returns a task's results from the states of all metrics, arrays of float64."""
    values: dict[str, float] = {}
    for name, state in states.items():
        own = task.read_metric(name, state)
        check_results(task.read_metric, own)
        values |= own
    results = task.results(values)
    check_results(task.results, results)
    return results


def evaluate_all(
    experiment: Experiment,
    program: Program,
    *,
    between: Between = iter,
    show_progress: ShowProgress = hide_progress,
) -> Iterator[EvaluationResult]:
    """Yields the result of every evaluation input, in the experiment's order, then of averages.

    With `evaluate.answers`, answers are decoded and scored for inputs with pairs of texts. Inputs
    with `measures` score the task's predictions. An average has a table and a picture that compare
    its inputs.
    """
    weights = experiment.p.evaluate.weights
    found: dict[str, dict[str, float]] = {}
    for name, input in experiment.eval_inputs.items():
        states = sum_metrics(program, input, weights=weights, between=between)
        metrics = read_results(experiment.task.select(input.specs()), states)
        answers: list[Answer] = []
        if experiment.evaluate.answers and input.has_text_pairs:
            with show_progress(f"answering {name}") as progress:
                answers = decode_answers(
                    experiment, program, input, between=between, progress=progress
                )
            metrics |= score_answers(experiment, answers)
            del answers[experiment.evaluate.answers.p.num_shown :]
        if input.measures:
            scores, answers = score_predictions(experiment, program, input, between=between)
            metrics |= scores
        with use_class_names(input.class_names):
            summaries = summarize(experiment, program, input, states, metrics)
        found[name] = metrics
        yield EvaluationResult(name, metrics, summaries, answers)
    for name, metrics in average_metrics(experiment, found).items():
        of_members = {member: found[member] for member in experiment.p.evaluate.averages[name]}
        yield EvaluationResult(name, metrics, {**summarize_inputs(of_members)}, [])


def score_predictions(
    experiment: Experiment, program: Program, input: Input, *, between: Between = iter
) -> tuple[dict[str, float], list[Answer]]:
    """Returns the scores that `Input.score` gives to all predictions, and answers to show.

    All processes call this together, and get all predictions.
    """
    parts: list[Arrays] = []
    for step in between(range(input.num_batches())):
        batch = input.batch(step)
        predictions, is_example = _predict(experiment, program, batch), batch["weights"] > 0
        parts.append({name: array[is_example] for name, array in predictions.items()})
    scores, answers = input.score(
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    return scores, answers[:_NUM_SHOWN]


def average_metrics(
    experiment: Experiment, metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Returns average's name -> metrics, for `evaluate.averages`: means over several inputs.

    An average has the metrics that all of its inputs have. Every input counts alike, however many
    examples it has.
    """
    means: dict[str, dict[str, float]] = {}
    for name, members in experiment.p.evaluate.averages.items():
        rows = [metrics[member] for member in members]
        shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
        means[name] = {metric: float(np.mean([row[metric] for row in rows])) for metric in shared}
    return means


def trace_evaluations(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Returns made-up metrics of inputs and averages, under the real names, before training.

    Raises ParamError if metrics or summaries do not have the form that `Task` documents.
    """
    traced = dict[str, dict[str, float]]()  # by specs
    specs = {name: input.specs() for name, input in experiment.eval_inputs.items()}
    for key, spec in {repr(spec): spec for spec in specs.values()}.items():
        task, draw = experiment.task.select(spec), np.random.default_rng(0)
        states = {
            name: {entry: draw.uniform(0.1, 0.9, value.shape) for entry, value in state.items()}
            for name, state in trace_metrics(experiment, spec).items()
        }
        traced[key] = read_results(task, states)
        for name, state in states.items():
            check_summaries(task.metric_summaries, task.metric_summaries(name, state))
    answers = experiment.evaluate.answers
    scores = dict.fromkeys(answers.p.measures if answers else (), 0.5)
    results = {}
    for name, input in experiment.eval_inputs.items():
        metrics = traced[repr(specs[name])]
        own = dict.fromkeys(input.measures, 0.5)
        results[name] = {**metrics, **own, **(scores if input.has_text_pairs else {})}
        check_examples(experiment, input, metrics=results[name])
    return results | average_metrics(experiment, results)


def loss_tags(
    experiment: Experiment, result: EvaluationResult, rows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Returns the `loss_terms` of an evaluation's result, by the tags of the input's own task."""
    if (data := experiment.eval_inputs.get(result.input)) is None:  # an average
        return loss_terms(experiment.task, result.metrics, rows)
    own, name = experiment.task.select(data.specs()), marked_task(data.specs()) or ""
    return loss_terms(own, result.metrics, rows, name=name)


def loss_terms(
    task: Task,
    metrics: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str = "",
) -> dict[str, float]:
    """Returns an evaluation's metrics that are loss terms, under the terms' tags in training.

    Under the same tag, TensorBoard draws training and evaluation in one chart. `rows` are the rows
    of metrics.jsonl; the last row with a training loss names the terms. The total loss is added if
    `metrics` has all terms. `name` is the task's name if it is one of several. Then the total is
    left out, since the tasks' totals share a tag.
    """
    prefix = f"loss/{name}/" if name else "loss/"
    row = next((row for row in reversed(rows) if _TOTAL in row), {})
    terms = [tag.removeprefix(prefix) for tag in row if tag.startswith(prefix) and tag != _TOTAL]
    aliases, values = task.loss_metrics(), dict[str, float]()
    for term in terms:
        named = [aliases[term]] if term in aliases else []
        for metric in (*named, f"loss/{term}", term):
            if metric in metrics:
                values[term] = metrics[metric]
                break
    tagged = {f"{prefix}{term}": value for term, value in values.items()}
    if terms and len(values) == len(terms) and not name:
        coefficients = task.coefficients()
        tagged[_TOTAL] = sum(coefficients.get(term, 1.0) * v for term, v in values.items())
    return tagged


class Evaluator:
    """Evaluates one checkpoint after another with the same compiled program."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._program: Program | None = None  # the first checkpoint starts it

    def evaluate_checkpoint(
        self, found: Checkpoint, *, show_progress: ShowProgress = hide_progress
    ) -> list[EvaluationResult]:
        """Returns the result of every evaluation input."""
        state = restore_state(self._experiment.learner, found)
        if self._program is None:
            self._program = self._experiment.runtime.start(self._experiment.learner, state)
        else:
            self._program.load(state)
        return list(evaluate_all(self._experiment, self._program, show_progress=show_progress))


# ---- summaries -----------------------------------------------------------------------------------


def summarize(
    experiment: Experiment,
    program: Program,
    input: Input,
    states: Mapping[str, State],
    metrics: Collection[str],
) -> dict[str, Media | float]:
    """Returns the task's summaries of an evaluation; all processes call this together.

    `states` are the metrics' states over all examples, `metrics` the names of the results. An
    exception of the task's methods becomes a warning: it must not end a run that has trained for
    hours.
    """
    task, summaries = experiment.task.select(input.specs()), dict[str, Media | float]()
    for name, state in states.items():
        with _warn_on_exception(task.metric_summaries):
            of_metric = task.metric_summaries(name, state)
            check_summaries(task.metric_summaries, of_metric)
            summaries |= _with_texts(of_metric, input)
    if _shows_examples(task, input) and input.num_batches():
        batch = input.batch(0)
        examples = _first_examples(experiment, batch, _predict(experiment, program, batch))
        with _warn_on_exception(input.summaries):
            summaries |= _input_summaries(input, *examples, metrics=metrics)
        with _warn_on_exception(task.summaries):
            of_examples = task.summaries(*examples)
            check_summaries(task.summaries, of_examples, metrics=metrics)
            summaries |= _with_texts(of_examples, input)
    return summaries


def _input_summaries(
    input: Input, batch: Arrays, predictions: Arrays, *, metrics: Collection[str]
) -> dict[str, Media]:
    """Returns the input's own summaries of examples; raises ParamError for another form."""
    found = input.summaries(batch["example_id"], predictions)
    check_summaries(input.summaries, found, metrics=metrics)
    return found


def _with_texts(summaries: Mapping[str, Media | float], input: Input) -> dict[str, Media | float]:
    """Returns summaries whose tables show tokens as texts, if the input has a tokenizer."""
    tokenizer = getattr(input, "tokenizer", None)
    return {
        name: one.with_texts(tokenizer.decode) if tokenizer and isinstance(one, Table) else one
        for name, one in summaries.items()
    }


def check_examples(experiment: Experiment, input: Input, *, metrics: Collection[str]) -> None:
    """Tries the summaries of examples, with zeros as predictions, before the first step.

    Raises ParamError if the result has another form than `Task` or `Input` documents, and any
    exception of their methods `summaries`.
    """
    task = experiment.task.select(input.specs())
    if not (_shows_examples(task, input) and input.num_batches()):
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
    _input_summaries(input, *examples, metrics=metrics)


def _shows_examples(task: Task, input: Input) -> bool:
    """Returns whether the task or the input has summaries of examples."""
    while isinstance(input, DerivedInput):
        input = input.input
    is_own = type(task).summaries is not Task.summaries
    return is_own or type(input).summaries is not Input.summaries


def _predict(experiment: Experiment, program: Program, batch: Mapping[str, np.ndarray]) -> Arrays:
    """Returns the predictions for a whole batch, and the batch's `weights`: {name: [B, ...]}."""
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
    """Turns an exception that a user's method raises in the body into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever the user's method raises
        name, kind = method.__qualname__, type(error).__name__
        _log.warning("%s: %s: %s; this evaluation lacks its summaries", name, kind, error)
