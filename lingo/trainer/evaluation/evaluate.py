"""Evaluation makes one pass over each finite input, without its padding.

Metric states are summed in double precision, so results depend on how examples are batched only
as far as each example's own value does: by float32 rounding, where shapes change the order of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint
from lingo.contract import Experiment
from lingo.data.input import Input
from lingo.inspection.trace import trace_metrics
from lingo.learner.state import WhichWeights, restore_state
from lingo.learner.task import Task, check_results
from lingo.metrics.metric import Accumulator, State
from lingo.runtimes.runtime import Program, explain_program_errors
from lingo.trainer.evaluation.answers import (
    Answer,
    Work,
    decode_answers,
    score_answers,
    show_nothing,
)
from lingo.trainer.evaluation.generate import Between


class Evaluated(NamedTuple):
    """What an evaluation says of one input."""

    input: str  # its name
    metrics: dict[str, float]
    answers: list[Answer]  # the first, to be shown


def evaluate(
    task: Task,
    program: Program,
    input: Input,
    *,
    weights: WhichWeights = "trained",
    between: Between = iter,
) -> dict[str, float]:
    """Returns the metrics of a program's task over all examples of an input that has an end.

    Raises DataError if the input fails, ProgramError if the program does.
    """
    total = Accumulator()
    for step in between(range(input.num_batches())):
        batch = input.batch(step, rows=program.example_slice(input.num_rows(step)))
        input.check_batch(batch)
        with explain_program_errors(f"evaluation, batch {step}"):
            total.add(program.evaluate(batch, weights=weights))
    return read_results(task, total.states)


def read_results(task: Task, states: Mapping[str, State]) -> dict[str, float]:
    """Returns what a task reports of the states of all metrics, arrays of float64."""
    values = [task.read_metric(name, state) for name, state in states.items()]
    results = task.results({name: value for one in values for name, value in one.items()})
    check_results(task, results)
    return results


def evaluate_all(
    experiment: Experiment, program: Program, *, between: Between = iter, work: Work = show_nothing
) -> Iterator[Evaluated]:
    """Yields the evaluation of every evaluation input of an experiment, in its order.

    With `evaluate.answers`, it decodes and scores answers of inputs with pairs of texts.
    """
    task, weights = experiment.task, experiment.p.evaluate.weights
    for name, input in experiment.eval_inputs.items():
        metrics = evaluate(task, program, input, weights=weights, between=between)
        answers: list[Answer] = []
        if experiment.evaluate.answers and input.has_text_pairs:
            with work(f"answering {name}") as progress:
                answers = decode_answers(
                    experiment, program, input, between=between, progress=progress
                )
            metrics |= score_answers(experiment, answers)
            del answers[experiment.evaluate.answers.p.num_shown :]
        yield Evaluated(name, metrics, answers)


def trace_evaluations(experiment: Experiment) -> dict[str, dict[str, float]]:
    """Returns metrics of every evaluation input from counts that are made up: for their names.

    Raises ParamError if metrics do not have the form that `Task` documents.
    """
    task, traced = experiment.task, dict[str, dict[str, float]]()  # by specs
    specs = {name: input.specs() for name, input in experiment.eval_inputs.items()}
    for key, one in {repr(one): one for one in specs.values()}.items():
        draw = np.random.default_rng(0)
        states = {
            name: {entry: draw.uniform(0.1, 0.9, value.shape) for entry, value in state.items()}
            for name, state in trace_metrics(experiment, one).items()
        }
        traced[key] = read_results(task, states)
    answers = experiment.evaluate.answers
    scores = dict.fromkeys(answers.p.measures if answers else (), 0.5)
    return {
        name: traced[repr(one)] | (scores if experiment.eval_inputs[name].has_text_pairs else {})
        for name, one in specs.items()
    }


def tag_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of an evaluation by TensorBoard tag."""
    return {f"eval/{metric}": value for metric, value in metrics.items()}


class Evaluator:
    """Evaluates one checkpoint after another with the same compiled program."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._program: Program | None = None  # the first checkpoint starts it

    def evaluate_checkpoint(
        self, found: Checkpoint, *, work: Work = show_nothing
    ) -> list[Evaluated]:
        """Returns the evaluation of every evaluation input."""
        state = restore_state(self._experiment.learner, found)
        if self._program is None:
            self._program = self._experiment.runtime.start(self._experiment.learner, state)
        else:
            self._program.load(state)
        return list(evaluate_all(self._experiment, self._program, work=work))
