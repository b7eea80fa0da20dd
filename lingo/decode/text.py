"""Texts to the arrays that a decoding starts from, and back.

Axes: B prompts, S samples of each, C tokens that every prompt has, R further tokens of the longest
prompt, N new tokens of a row at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingo.data.tokenizer import Tokenizer
from lingo.decode.sampling import Sampling


class Continuation(NamedTuple):
    """What a model adds to a prompt.

    Attributes:
        text: without the prompt.
        tokens: ids of the text.
        log_probs: log-probability of each token, and of the end if it came to one, under the model
            itself: at temperature 1, among all tokens.
        is_ended: whether the model ended the text; else it has as many tokens as were allowed.
    """

    text: str
    tokens: list[int]
    log_probs: list[float]
    is_ended: bool


def encode(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Returns what a model reads before it continues a prompt: the start, then the ids, int32."""
    return np.concatenate([[tokenizer.start_id], tokenizer.encode(prompt)]).astype(np.int32)


def prompt_batch(
    prompts: Sequence[np.ndarray], *, rows: Sequence[int], end_id: int
) -> dict[str, np.ndarray]:
    """Returns the batch that a decoding starts from.

    What all prompts have is an array of its own, so that shapes alone say how long it is.

    Args:
        prompts: ids of each, int32 [at least 1], the start among them.
        rows: number of each prompt, which its random numbers depend on.
        end_id: the token that ends a text.

    Returns:
        `prefix`: int32 [B, C], the first tokens of each prompt, as many as the shortest has;
        `rest`: int32 [B, R], those that follow; 0 after the last;
        `rest_length`: int32 [B], how many follow;
        `end_id`: int32 [B];
        `rows`: int32 [B].
    """
    common = min(map(len, prompts))
    lengths = np.array([len(prompt) - common for prompt in prompts], np.int32)
    rest = np.zeros([len(prompts), lengths.max()], np.int32)
    for row, prompt in zip(rest, prompts, strict=True):
        row[: len(prompt) - common] = prompt[common:]
    return {
        "prefix": np.stack([prompt[:common] for prompt in prompts]),
        "rest": rest,
        "rest_length": lengths,
        "end_id": np.full(len(prompts), end_id, np.int32),
        "rows": np.array(rows, np.int32),
    }


def continuations(
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    decoded: Mapping[str, np.ndarray],
    sampling: Sampling,
) -> list[list[Continuation]]:
    """Returns the samples of each prompt.

    Args:
        tokenizer: that encoded the prompts.
        prompts: ids of each, as `prompt_batch` took them.
        decoded: of `lingo.decode.loop.decode`: `tokens` and `log_probs`, [B, S, R + N].
        sampling: how they were decoded.
    """
    common, size = min(map(len, prompts)), sampling.p.max_tokens
    found = []
    for prompt, tokens, log_probs in zip(
        prompts, decoded["tokens"], decoded["log_probs"], strict=True
    ):
        new = slice(len(prompt) - common, len(prompt) - common + size)
        samples = zip(tokens[:, new], log_probs[:, new], strict=True)
        found.append([_continuation(tokenizer, prompt, *sample) for sample in samples])
    return found


def _continuation(
    tokenizer: Tokenizer, prompt: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray
) -> Continuation:
    ends = np.flatnonzero(tokens == tokenizer.end_id)
    size = int(ends[0]) if ends.size else len(tokens)
    ids = tokens[:size]
    return Continuation(
        text=_added(tokenizer, prompt, ids),
        tokens=ids.tolist(),
        log_probs=log_probs[: size + bool(ends.size)].tolist(),
        is_ended=bool(ends.size),
    )


def _added(tokenizer: Tokenizer, prompt: np.ndarray, ids: np.ndarray) -> str:
    """Returns the text of ids after a prompt: how a piece reads may depend on those before."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(np.concatenate([prompt, ids]))
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids)
