"""A model whose every score depends on all tokens before, and what decodings make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lingo.config.lazy import tf
from lingo.data.prompt import Prompt
from lingo.decode.decoding import Decoding
from lingo.decode.text import prompt_batch
from lingo.ops import random

END = 1


class Text(NamedTuple):
    """A text of a prompt, its end included, and the log-probability of each token."""

    tokens: list[int]
    log_probs: list[float]

    def score(self, length_penalty: float) -> float:
        return sum(self.log_probs) / ((5 + len(self.tokens)) / 6) ** length_penalty


class Model:
    """Scores by a sum over all tokens so far, each times its number in the text."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        shape = [23, vocab_size]
        self.table = np.random.default_rng(seed).normal(0, 1.5, shape).astype(np.float32)

    def step(self, tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        numbers = index + tf.range(tf.shape(tokens)[1]) + 1
        total = caches["past"] + tf.reduce_sum((tokens + 1) * numbers, axis=1)
        return tf.gather(self.table, total % 23), {**caches, "past": total}

    def log_probs(self, tokens: Sequence[int]) -> np.ndarray:
        logits = self.table[sum((t + 1) * (i + 1) for i, t in enumerate(tokens)) % 23]
        return logits - np.log(np.exp(logits.astype(np.float64)).sum())

    def text(self, prompt: Sequence[int], new: Sequence[int]) -> Text:
        known = [self.log_probs([*prompt, *new[:i]])[token] for i, token in enumerate(new)]
        return Text(list(new), known)


def batch_of(prompts: Sequence[Sequence[int]], *, end_id: int = END, rows: Any = None) -> Any:
    """Returns the batch of prompts that decoding takes; rows are 0, 1, ... by default."""
    rows = range(len(prompts)) if rows is None else rows
    batch = prompt_batch([Prompt(np.int32(p)) for p in prompts], rows=rows, end_id=end_id)
    return {name: tf.constant(value) for name, value in batch.items()}


def decode(
    model: Model,
    decoding: Decoding,
    prompts: Sequence[Sequence[int]],
    *,
    end_id: int = END,
    rows: Sequence[int] | None = None,
    key: random.Key | None = None,
    xla: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and log-probabilities from the end of each prompt on, [B, S, N]."""
    batch = batch_of(prompts, end_id=end_id, rows=rows)

    @tf.function(autograph=False, jit_compile=xla)
    def program(batch: Any) -> Any:
        caches = {"past": tf.zeros([tf.shape(batch["prefix"])[0]], tf.int32)}
        return decoding.decode(model.step, caches, batch, key or random.root_key(0))

    decoded, starts = program(batch), batch["rest_length"].numpy()
    tokens, log_probs = (
        np.stack([v[:, s : s + decoding.p.max_tokens] for v, s in zip(values, starts, strict=True)])
        for values in (decoded["tokens"].numpy(), decoded["log_probs"].numpy())
    )
    return tokens, log_probs


def run(model: Model, decoding: Decoding, prompts: Any, **options: Any) -> list[list[Text]]:
    """Returns the texts of each prompt, up to their ends."""
    arrays = decode(model, decoding, prompts, **options)
    tokens, log_probs = (array.tolist() for array in arrays)
    end_id = options.get("end_id", END)
    return [
        [cut(*text, end_id=end_id) for text in zip(*texts, strict=True)]
        for texts in zip(tokens, log_probs, strict=True)
    ]


def cut(tokens: list[int], log_probs: list[float], *, end_id: int = END) -> Text:
    """Returns a text up to its end."""
    size = tokens.index(end_id) + 1 if end_id in tokens else len(tokens)
    return Text(tokens[:size], log_probs[:size])


def assert_are(found: Sequence[Text], expected: Sequence[Text]) -> None:
    """Compares texts of one prompt."""
    assert [text.tokens for text in found] == [text.tokens for text in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
