"""Text generation: continues or answers prompts, in batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from lingo.config.params import ParamError
from lingo.contract import Experiment
from lingo.data.array_spec import task_mark
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import Tokenizer
from lingo.decode.decoding import Decoding
from lingo.decode.text import Continuation, continuations, prompt_batch
from lingo.learner.step import IS_CAUSAL
from lingo.runtimes.program import Program, explain_program_errors

Between = Callable[[Iterable[int]], Iterable[int]]
"""Wraps an iterable of batch indices, and may raise between two of them to end an evaluation."""

BATCH_ROWS = 64
"""The number of texts in a batch, over all prompts; results do not depend on it."""

SOURCE_MULTIPLE = 64
"""Sources are padded to a multiple of this: a program is compiled for each padded length."""


def generate(
    experiment: Experiment,
    program: Program,
    prompts: Sequence[str],
    decoding: Decoding,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Continuation]]:
    """Continues prompts with the evaluation weights, or answers them if trained on text pairs.

    A text depends on its prompt, the seed, the prompt's index and the text's index, but not on the
    other prompts. `progress` is called with the number of prompts done and the total.

    Raises the ParamErrors of `encode_prompts`, and ProgramError if the program fails.
    """
    ids = encode_prompts(experiment, prompts, decoding)
    return continue_prompts(experiment, program, ids, decoding, seed=seed, progress=progress)


def continue_prompts(
    experiment: Experiment,
    program: Program,
    prompts: Sequence[Prompt],
    decoding: Decoding,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    between: Between = iter,
    arrays: Mapping[str, np.ndarray] = {},
    tokenizer: Tokenizer | None = None,
) -> list[list[Continuation]]:
    """Continues or answers prompts as `generate` does, for prompts that are token ids.

    `arrays`, {name: [B, ...]}, are added to each batch; `decoding` reads them. `tokenizer` decodes
    tokens; None: the training input's. All processes call this together, and get all texts.
    """
    tokenizer, weights = tokenizer or tokenizer_of(experiment), experiment.p.evaluate.weights
    batches = list(_batches(prompts, max(1, BATCH_ROWS // decoding.rows_per_prompt)))
    results: dict[int, list[Continuation]] = {}
    for i in between(range(len(batches))):
        rows = batches[i]
        group = [prompts[row] for row in rows]
        length = _padded_source_length(group, prompts)
        batch = prompt_batch(group, rows=rows, end_id=tokenizer.end_id, source_length=length)
        batch |= arrays
        own = {name: array[program.example_slice(len(rows))] for name, array in batch.items()}
        with explain_program_errors("decoding"):
            decoded = program.decode(own, decoding, seed=seed, weights=weights)
        _check_causal(decoded)
        texts = continuations(tokenizer, group, decoded, decoding)
        results |= dict(zip(rows, texts, strict=True))
        if progress is not None:
            progress(len(results), len(prompts))
    return [results[row] for row in range(len(prompts))]


def samples(experiment: Experiment, program: Program) -> dict[str, str]:
    """Returns prompt -> the first generated text, for the prompts in `evaluate.prompts`."""
    prompts, seed = experiment.p.evaluate.prompts, experiment.p.seed
    found = generate(experiment, program, prompts, experiment.evaluate.sampling, seed=seed)
    return {prompt: texts[0].text for prompt, texts in zip(prompts, found, strict=True)}


def check_prompts(experiment: Experiment) -> None:
    """Raises ParamError if an experiment cannot decode its `evaluate.prompts`."""
    if experiment.p.evaluate.prompts:
        encode_prompts(experiment, experiment.p.evaluate.prompts, experiment.evaluate.sampling)


def can_decode(experiment: Experiment) -> bool:
    """Returns whether an experiment's data are texts and its task can continue texts."""
    try:
        tokenizer_of(experiment)
        experiment.task.check_positions(1)
    except ParamError:
        return False
    return True


def answers(experiment: Experiment) -> bool:
    """Returns whether a model is trained to answer texts, rather than to continue them."""
    return experiment.train_input.prompt("").is_answered


def encode_prompts(
    experiment: Experiment, prompts: Sequence[str], decoding: Decoding
) -> list[Prompt]:
    """Returns prompts as token ids.

    Raises ParamError if there is no prompt, if a prompt is not a text or is too long, or if the
    experiment's data are not texts.
    """
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise ParamError(f"prompts={prompts!r} is not a list of at least one text")
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ParamError(f"prompts[{i}] is {prompt!r:.80} ({type(prompt).__name__}), not a str")
    tokenizer_of(experiment)
    ids = [experiment.train_input.prompt(text) for text in prompts]
    for text, prompt in zip(prompts, ids, strict=True):
        check_prompt(experiment, prompt, max_tokens=decoding.p.max_tokens, text=text)
    return ids


def check_prompt(
    experiment: Experiment, prompt: Prompt, *, max_tokens: int, text: str = ""
) -> None:
    """Raises ParamError if a prompt with `max_tokens` new tokens is too long for the model."""
    try:
        task = experiment.task.select([task_mark(prompt.task)]) if prompt.task else experiment.task
        task.check_positions(prompt.num_positions(max_tokens))
    except ParamError as error:
        quoted = f"prompt {_shorten(text)}" if text else "prompt"
        raise ParamError(f"{quoted}, {prompt.size} tokens, and {max_tokens=}: {error}") from None


def tokenizer_of(experiment: Experiment) -> Tokenizer:
    """Returns the tokenizer of the training input; ParamError if it has none."""
    tokenizer = getattr(experiment.train_input, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        kind = type(experiment.train_input).__name__
        raise ParamError(f"train_input, a {kind}, has no tokenizer: it holds no text to continue")
    return tokenizer


def _check_causal(decoded: Mapping[str, np.ndarray]) -> None:
    """Raises ParamError if a layer without a decoding `step` is not causal."""
    for name, value in decoded.items():
        kind, _, layer = name.partition("/")
        if kind == IS_CAUSAL and not value.all():
            raise ParamError(
                f"{layer}: a position depends on later ones, so no text can be decoded, and in"
                " training the model sees the tokens that it predicts: use a causal layer"
            )


def _batches(prompts: Sequence[Prompt], size: int) -> Iterator[list[int]]:
    """Yields batches of prompts to decode together: lists of at most `size` indices.

    Prompts are sorted by length, because short prompts wait for the longer prompts in their batch.
    Prefixes are read in one chunk, so all prefixes of a batch have the same length.
    """

    def prefix_length(row: int) -> int | None:
        return len(prompts[row].tokens) if prompts[row].is_prefix else None

    order = sorted(range(len(prompts)), key=lambda row: prompts[row].size)
    for _, alike in itertools.groupby(order, prefix_length):
        rows = list(alike)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def _padded_source_length(group: Sequence[Prompt], prompts: Sequence[Prompt]) -> int:
    """Returns the length to which a group's source texts are padded; 0 if prompts have no source.

    The length is a multiple of `SOURCE_MULTIPLE`, but at most the length of the longest source of
    all prompts, because the model may have no further positions.
    """
    longest, limit = (
        max(prompt.size - len(prompt.tokens) for prompt in p) for p in (group, prompts)
    )
    return min(-(-longest // SOURCE_MULTIPLE) * SOURCE_MULTIPLE, limit)


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
