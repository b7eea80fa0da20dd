"""Converts prompts to the batch that decoding takes, and its result to texts.

Axes: B prompts, S texts per prompt, C tokens that every prompt has, R further tokens of the longest
prompt, at most N new tokens per text, M tokens of the longest source or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lingo.data.array_spec import task_mark
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import Tokenizer
from lingo.decode.decoding import Decoding

_PART_OF_CHARACTER = "\ufffd"  # the text of an incomplete character, or of invalid bytes
_MAX_PARTS = 3  # bytes of an incomplete character, if each byte is a token


class Continuation(NamedTuple):
    """A text that a model has decoded: it continues a prompt, or answers it.

    `log_probs` has a number for each token, and for the end token if there is one, under the model
    itself (temperature 1, all tokens).
    """

    text: str  # the decoded text, without the prompt
    tokens: list[int]
    log_probs: list[float]
    score: float  # sum of `log_probs`; beam search divides it by the length penalty
    is_ended: bool  # whether the model ended the text; else it was cut at `max_tokens`


def prompt_batch(
    prompts: Sequence[Prompt],
    *,
    rows: Sequence[int],
    end_id: int,
    source_length: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the batch of prompts that decoding takes.

    The first C tokens of all prompts are a separate array, so that C is a static size.

    Args:
        prompts: all or none have a source; all or none are prefixes, which have the same length;
            all are for one task.
        rows: id of each prompt, on which its random numbers depend.
        end_id: the token that ends a text.
        source_length: M is at least this number.

    Returns:
        `prefix`: int32 [B, C], the first C tokens of each prompt, C the length of the shortest;
        `rest`: int32 [B, R], the tokens that follow, padded with 0;
        `rest_length`: int32 [B], the number of tokens that follow;
        `end_id`: int32 [B];
        `rows`: int32 [B], the ids of the prompts;
        `prefix_seen`: bool [B, C], all True, for the mask `Prefix`; only if prompts are prefixes;
        `source_tokens`, `source_segments`, `source_positions`: int32 [B, M], as in a training batch
            with one source per example; only if prompts have sources;
        `task__<name>`: int32 [B], zeros, only if prompts have a task.
    """
    tokens = [prompt.tokens for prompt in prompts]
    common = min(map(len, tokens))
    batch = {
        "prefix": np.stack([ids[:common] for ids in tokens]),
        "rest": _pad_rows([ids[common:] for ids in tokens]),
        "rest_length": np.array([len(ids) - common for ids in tokens], np.int32),
        "end_id": np.full(len(prompts), end_id, np.int32),
        "rows": np.array(rows, np.int32),
    }
    if prompts[0].task:
        batch[task_mark(prompts[0].task)] = np.zeros_like(batch["rows"])
    if prompts[0].is_prefix:
        batch["prefix_seen"] = np.ones_like(batch["prefix"], bool)
    sources = [prompt.source for prompt in prompts if prompt.source is not None]
    if sources:
        size = source_length
        batch["source_tokens"] = _pad_rows(sources, size)
        batch["source_segments"] = _pad_rows([np.ones_like(ids) for ids in sources], size)
        batch["source_positions"] = _pad_rows([np.arange(len(ids)) for ids in sources], size)
    return batch


def continuations(
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    decoded: Mapping[str, np.ndarray],
    decoding: Decoding,
) -> list[list[Continuation]]:
    """Returns the texts of each prompt; fewer than S if a beam search found no more.

    `prompts` are the prompts that `prompt_batch` took; `decoded` is the result of `decoding`:
    `tokens`, int32 [B, S, R + N], and `log_probs`, float32 [B, S, R + N].
    """
    common = min(len(prompt.tokens) for prompt in prompts)
    results = []
    for prompt, tokens, log_probs in zip(
        prompts, decoded["tokens"], decoded["log_probs"], strict=True
    ):
        begin = len(prompt.tokens) - common
        new = slice(begin, begin + decoding.p.max_tokens)
        pairs = zip(tokens[:, new], log_probs[:, new], strict=True)
        first, *others = [_continuation(tokenizer, prompt, *pair, decoding) for pair in pairs]
        results.append([first] + [text for text in others if text.score > -math.inf])
    return results


class TextPieces:
    """The text of tokens that come one at a time, in pieces of whole characters."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt
        self._ids: list[int] = []
        self._length = 0  # characters of the pieces so far
        self._is_ended = False

    def add(self, token: int) -> str:
        """Returns the text that a token adds; "" inside a character and from the end token on."""
        self._is_ended |= token == self._tokenizer.end_id
        if self._is_ended:
            return ""
        self._ids.append(token)
        text = _text(self._tokenizer, self._prompt, np.array(self._ids, np.int32))
        sure, last = text[:-_MAX_PARTS], text[-_MAX_PARTS:]
        return self.rest(sure + last.rstrip(_PART_OF_CHARACTER))

    def rest(self, text: str) -> str:
        """Returns what `text`, which begins with the pieces so far, has after these pieces."""
        begin, self._length = self._length, max(self._length, len(text))
        return text[begin:]


def _continuation(
    tokenizer: Tokenizer,
    prompt: Prompt,
    tokens: np.ndarray,
    log_probs: np.ndarray,
    decoding: Decoding,
) -> Continuation:
    ends = np.flatnonzero(tokens == tokenizer.end_id)
    size = int(ends[0]) if ends.size else len(tokens)
    ids, scores = tokens[:size], log_probs[: size + bool(ends.size)].tolist()
    text, score = _text(tokenizer, prompt, ids), decoding.score(scores)
    return Continuation(text, ids.tolist(), scores, score, is_ended=bool(ends.size))


def _text(tokenizer: Tokenizer, prompt: Prompt, ids: np.ndarray) -> str:
    """Returns the text that ids add to a prompt; an id's text may depend on the ids before."""
    if prompt.is_answered:
        return tokenizer.decode(ids)
    context = prompt.tokens if prompt.source is None else prompt.source
    before, whole = (tokenizer.decode(np.append(context, new)) for new in (ids[:0], ids))
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids)


def _pad_rows(rows: Sequence[np.ndarray], size: int = 0) -> np.ndarray:
    """Pads lists of ints with 0 to one array, int32 [B, max(longest length, size)]."""
    out = np.zeros([len(rows), max(size, *map(len, rows))], np.int32)
    for to, row in zip(out, rows, strict=True):
        to[: len(row)] = row
    return out
