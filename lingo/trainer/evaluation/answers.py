"""Answers that a model decodes for held-out pairs of texts, and their scores against the targets.

pairs = input.text_pairs(max_examples)        # the same at every evaluation
answers = decode the sources of pairs         # a batch at a time
scores = text_scores(answers, targets)        # once, for the whole corpus
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
    """Decodes answers to the sources of an input's text pairs, as `evaluate.answers` says.

    An answer does not depend on the other answers in its batch. All processes call this together,
    and get all answers. `progress` is called with the number of answers decoded and the total.

    Raises DataError if the input fails, ProgramError if the program fails, MissingPackage if
    a measure needs a package that is not installed.
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
        tokenizer=getattr(input, "tokenizer", None),
    )
    return [
        Answer(pair.source, pair.target, first.text)
        for pair, (first, *_) in zip(pairs, texts, strict=True)
    ]


def score_answers(experiment: Experiment, answers: Sequence[Answer]) -> dict[str, float]:
    """Returns measure -> score of answers, for the measures in `evaluate.answers`."""
    texts, targets = [one.text for one in answers], [one.target for one in answers]
    return text_scores(texts, targets, _settings(experiment).p.measures)


def check_answers(experiment: Experiment) -> None:
    """Checks before a run that answers can be decoded and scored; the data must be open.

    Raises ParamError if a source with its answer has more positions than the model, or if the task
    cannot decode; MissingPackage if a measure needs a package that is not installed.
    """
    answers = _settings(experiment)
    signatures(answers.p.measures)
    limit, max_tokens = answers.p.max_examples, answers.decoding.p.max_tokens
    for name, input in experiment.eval_inputs.items():
        if not input.has_text_pairs:
            continue
        longest = max(p.prompt.num_positions(max_tokens) for p in input.text_pairs(limit))
        try:
            experiment.task.select(input.specs()).check_positions(longest)
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
    """Returns a line that shows an answer: source, text and target, each cut to a few words."""
    return f"{answer.source!r:.40} -> {answer.text!r:.60}  (target {answer.target!r:.60})"


@contextlib.contextmanager
def hide_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that shows no progress; a `ShowProgress` for callers that print nothing."""
    del what
    yield lambda done, total: None


def _settings(experiment: Experiment) -> Answers:
    if experiment.evaluate.answers is None:
        raise ParamError("evaluate.answers is None: it must say how answers are decoded and scored")
    return experiment.evaluate.answers
