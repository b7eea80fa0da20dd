"""Text from a model: prompts in, continuations out, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lingo.config.params import ParamError
from lingo.data.tokenizer import Tokenizer
from lingo.decode.sampling import Sampling
from lingo.decode.text import Continuation, continuations, encode, prompt_batch
from lingo.train.experiment import Experiment
from lingo.train.runtimes.runtime import Program, computing

BATCH_ROWS = 64
"""Prompts times samples that are decoded together; results do not depend on it."""


def generate(
    experiment: Experiment,
    program: Program,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Continuation]]:
    """Continues texts with the weights that evaluations use.

    A text is a function of the seed, the number of its prompt and that of the sample; not of the
    other prompts.

    Args:
        experiment: what the program trains.
        program: holds the weights.
        prompts: what to continue.
        sampling: how.
        seed: of what is drawn.
        progress: called with how many prompts are done, and how many there are.

    Returns:
        For each prompt its samples.

    Raises:
        ParamError: as `encoded`.
        ProgramError: if the program fails.
    """
    ids = encoded(experiment, prompts, sampling)
    tokenizer, weights = tokenizer_of(experiment), experiment.p.evaluate.weights
    size = max(1, BATCH_ROWS // sampling.p.num_samples)
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))  # the short wait for the long
    found: dict[int, list[Continuation]] = {}
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        together = [ids[row] for row in rows]
        batch = prompt_batch(together, rows=rows, end_id=tokenizer.end_id)
        with computing("decoding"):
            decoded = program.decode(batch, sampling, seed=seed, weights=weights)
        samples = continuations(tokenizer, together, decoded, sampling)
        found |= dict(zip(rows, samples, strict=True))
        if progress is not None:
            progress(len(found), len(ids))
    return [found[row] for row in range(len(ids))]


def samples(experiment: Experiment, program: Program) -> dict[str, str]:
    """Returns how a model goes on with the prompts of its evaluations; the first sample of each.

    Raises:
        ParamError, ProgramError: as `generate`.
    """
    prompts, seed = experiment.p.evaluate.prompts, experiment.p.seed
    found = generate(experiment, program, prompts, experiment.evaluate.sampling, seed=seed)
    return {prompt: texts[0].text for prompt, texts in zip(prompts, found, strict=True)}


def check_prompts(experiment: Experiment) -> None:
    """Raises ParamError if an experiment's evaluations cannot go on with their prompts."""
    if experiment.p.evaluate.prompts:
        encoded(experiment, experiment.p.evaluate.prompts, experiment.evaluate.sampling)


def encoded(experiment: Experiment, prompts: Sequence[str], sampling: Sampling) -> list[np.ndarray]:
    """Returns the ids of prompts, int32.

    Raises:
        ParamError: if there is none, one is no text or too long, or the experiment has no texts.
    """
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise ParamError(f"prompts={prompts!r} is no list of at least one text")
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ParamError(f"prompts[{i}] is {prompt!r:.80} ({type(prompt).__name__}), no str")
    tokenizer = tokenizer_of(experiment)
    ids = [encode(tokenizer, prompt) for prompt in prompts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        try:
            experiment.task.check_positions(len(tokens) + sampling.p.max_tokens - 1)
        except ParamError as error:
            raise ParamError(
                f"prompt {_shortened(prompt)}, {len(tokens)} tokens, and"
                f" max_tokens={sampling.p.max_tokens}: {error}"
            ) from None
    return ids


def tokenizer_of(experiment: Experiment) -> Tokenizer:
    """Returns the tokenizer of the training input.

    Raises:
        ParamError: if it has none.
    """
    tokenizer = getattr(experiment.train_input, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        kind = type(experiment.train_input).__name__
        raise ParamError(f"train_input, a {kind}, has no tokenizer: it holds no text to continue")
    return tokenizer


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
