"""Answers that a model decodes for held-out pairs of texts, and their scores against the targets.

pairs = input.text_pairs(max_examples)        # the same at every evaluation
answers = decode the sources of pairs         # some at a time
scores = text_scores(answers, targets)        # once, of the whole corpus
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from lingo.config.params import ParamError, fields
from lingo.contract import Answers, Experiment
from lingo.data.input import Input
from lingo.data.prompt import Answer
from lingo.metrics.text import signatures, text_scores
from lingo.runtimes.program import Program
from lingo.trainer.evaluation.generate import Between, continue_prompts

ShowProgress = Callable[[str], contextlib.AbstractContextManager[Callable[[int, int], None]]]
"""Given a name of long work, yields a function to call with the amount done and the total."""


def decode_answers(
    experiment: Experiment,
    program: Program,
    input: Input,
    *,
    between: Between = iter,
    progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """Returns the answers to an input that `has_text_pairs`, as `evaluate.answers` asks for them.

    An answer does not depend on the answers decoded with it. All processes call this together, and
    get all answers. `progress` is called with the number of answers decoded and the total.

    Raises DataError if the input fails, ProgramError if the program does, MissingPackage if a
    measure needs a package that is not installed.
    """
    answers = _settings(experiment)
    signatures(answers.p.measures)  # a missing package shows before the work
    pairs = input.text_pairs(answers.p.max_examples)
    texts = continue_prompts(
        experiment,
        program,
        [pair.prompt for pair in pairs],
        answers.decoding,
        seed=experiment.p.seed,
        progress=progress,
        between=between,
    )
    return [
        Answer(pair.source, pair.target, first.text)
        for pair, (first, *_) in zip(pairs, texts, strict=True)
    ]


def score_answers(experiment: Experiment, answers: Sequence[Answer]) -> dict[str, float]:
    """Returns the scores of answers that `evaluate.answers` asks for, by measure."""
    texts, targets = [one.text for one in answers], [one.target for one in answers]
    return text_scores(texts, targets, _settings(experiment).p.measures)


def check_answers(experiment: Experiment) -> None:
    """Checks before a run that answers can be decoded and scored; the data must be open.

    Raises ParamError if a source and its answer have more positions than the model, or the task
    decodes nothing; MissingPackage if a measure needs a package that is not installed.
    """
    answers = _settings(experiment)
    signatures(answers.p.measures)
    limit, max_tokens = answers.p.max_examples, answers.decoding.p.max_tokens
    for name, input in experiment.eval_inputs.items():
        if not input.has_text_pairs:
            continue
        longest = max(p.prompt.num_positions(max_tokens) for p in input.text_pairs(limit))
        try:
            experiment.task.check_positions(longest)
        except ParamError as error:
            raise ParamError(
                f"evaluate.answers: the longest source of {name!r} and {max_tokens=}: {error}"
            ) from None


def describe_measures(experiment: Experiment) -> str:
    """Returns how answers are decoded and scored, with the signatures of the measures."""
    answers = _settings(experiment)
    kind, p = type(answers.decoding), answers.decoding.p
    settings = ", ".join(f"{name}={getattr(p, name)!r}" for name in fields(kind))
    return "\n".join([f"{kind.__name__}({settings})", *signatures(answers.p.measures)])


def answer_line(answer: Answer) -> str:
    """Returns an answer in a line: source, text, target, each cut to a few words."""
    return f"{answer.source!r:.40} -> {answer.text!r:.60}  (target {answer.target!r:.60})"


@contextlib.contextmanager
def hide_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows no progress: the `ShowProgress` of work that prints nothing."""
    del what
    yield lambda done, total: None


def _settings(experiment: Experiment) -> Answers:
    if experiment.evaluate.answers is None:
        raise ParamError("evaluate.answers is None: it must say how answers are decoded and scored")
    return experiment.evaluate.answers
