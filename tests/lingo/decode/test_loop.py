"""The decoding loop, with a model whose every score depends on all tokens before: against a slow
loop that computes the whole text anew for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lingo.decode.loop import decode, num_positions
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.lazy import tf
from lingo.ops import random

V, END, N = 7, 1, 6
TABLE = np.random.default_rng(0).normal(0, 2, [11, V]).astype(np.float32)
PROMPTS = [[2, 5], [2, 3, 4, 6, 6], [2, 6, 3]]
ROWS = [0, 1, 2]
KEY = random.root_key(0)


def step(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
    """Scores by a sum over all tokens so far, each times its number in the text."""
    past = caches["past"]
    size = tf.shape(tokens)[1]
    numbers = index + tf.range(size) + 1
    sums = past[:, None] + tf.cumsum((tokens + 1) * numbers, axis=1)
    return tf.gather(TABLE, sums % len(TABLE)), {"past": tf.ensure_shape(sums[:, -1], past.shape)}


def logits_of(tokens: Sequence[int]) -> np.ndarray:
    return TABLE[sum((t + 1) * (i + 1) for i, t in enumerate(tokens)) % len(TABLE)]


def run(
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int] = ROWS,
    *,
    key: random.Key = KEY,
    xla: bool = False,
    **settings: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and log-probabilities from the end of each prompt on, [B, S, N]."""
    sampling = Sampling.params(**{"max_tokens": N, **settings}).build()
    ids = [np.array(p, np.int32) for p in prompts]
    batch = prompt_batch(ids, rows=rows, end_id=END)

    @tf.function(autograph=False, jit_compile=xla)
    def program(batch: Any) -> Any:
        caches = {"past": tf.zeros([tf.shape(batch["prefix"])[0]], tf.int32)}
        return decode(step, caches, batch, sampling, key)

    found = program({k: tf.constant(v) for k, v in batch.items()})
    starts = [len(p) - len(batch["prefix"][0]) for p in prompts]
    return tuple(
        np.stack([v[:, s : s + N] for v, s in zip(found[k].numpy(), starts, strict=True)])
        for k in ("tokens", "log_probs")
    )


def greedy(prompt: Sequence[int]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + N:
        done = END in tokens[len(prompt) :]
        tokens.append(END if done else int(np.argmax(logits_of(tokens))))
    return tokens[len(prompt) :]


def test_greedy_tokens_are_those_of_computing_all_anew() -> None:
    tokens, _ = run(PROMPTS, temperature=0.0)
    assert tokens[:, 0].tolist() == [greedy(p) for p in PROMPTS]
    assert len({*map(tuple, tokens[:, 0].tolist())}) == 3


def test_log_probabilities_are_those_of_the_model_at_temperature_one() -> None:
    tokens, log_probs = run(PROMPTS, temperature=0.5, top_k=3)
    for prompt, row, found in zip(PROMPTS, tokens[:, 0], log_probs[:, 0], strict=True):
        text = list(prompt)
        for token, value in zip(row, found, strict=True):
            logits = logits_of(text)
            assert value == pytest.approx(logits[token] - np.log(np.exp(logits).sum()), abs=1e-5)
            text.append(int(token))
            if token == END:
                break


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    together, _ = run(PROMPTS, temperature=1.5)
    for i, prompt in enumerate(PROMPTS):
        alone, _ = run([prompt], [i], temperature=1.5)
        np.testing.assert_array_equal(alone[0], together[i])


def test_a_sample_does_not_depend_on_how_many_there_are() -> None:
    two, _ = run(PROMPTS, temperature=1.5, num_samples=2)
    five, _ = run(PROMPTS, temperature=1.5, num_samples=5)
    np.testing.assert_array_equal(two, five[:, :2])
    assert len({*map(tuple, five[0].tolist())}) > 1


def test_another_number_or_key_draws_other_tokens() -> None:
    one, _ = run([[2, 5]], [0], temperature=3.0)
    assert (run([[2, 5]], [1], temperature=3.0)[0] != one).any()
    assert (run([[2, 5]], [0], key=random.root_key(1), temperature=3.0)[0] != one).any()


def test_xla_gives_the_same_tokens() -> None:
    settings = {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "num_samples": 2}
    plain, compiled = run(PROMPTS, **settings), run(PROMPTS, xla=True, **settings)
    np.testing.assert_array_equal(plain[0], compiled[0])
    np.testing.assert_allclose(plain[1], compiled[1], rtol=1e-5)


def test_nothing_follows_an_end() -> None:
    tokens, _ = run(PROMPTS, temperature=2.0, num_samples=20)
    for row in tokens.reshape(-1, N).tolist():
        if END in row:
            assert set(row[row.index(END) :]) == {END}
    assert (tokens == END).any()


def test_an_end_inside_a_prompt_ends_nothing() -> None:
    prompts = [[2, 5], [2, END, 3, END]]
    tokens, _ = run(prompts, ROWS[:2], temperature=0.0)
    assert tokens[:, 0].tolist() == [greedy(p) for p in prompts]


def test_the_loop_ends_when_all_rows_are_done() -> None:
    steps = []

    def always_ends(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        tf.py_function(lambda: steps.append(1), [], [])
        logits = tf.one_hot(tf.fill(tf.shape(tokens), END), V)
        return logits, caches

    batch = prompt_batch([np.array([2]), np.array([2, 3, 4])], rows=[0, 1], end_id=END)
    sampling = Sampling.params(max_tokens=50, temperature=0.0).build()
    batch = {k: tf.constant(v) for k, v in batch.items()}
    program = tf.function(lambda: decode(always_ends, {}, batch, sampling, KEY), autograph=False)
    assert (program()["tokens"].numpy()[0] == END).all()
    assert len(steps) <= 3, "the prefix, and two tokens of the longer prompt"


def test_positions_are_those_of_the_longest_prompt_and_all_tokens_but_the_last() -> None:
    batch = prompt_batch([np.array(p) for p in PROMPTS], rows=ROWS, end_id=END)
    sampling = Sampling.params(max_tokens=N).build()
    assert num_positions({k: tf.constant(v) for k, v in batch.items()}, sampling) == 5 + N - 1
