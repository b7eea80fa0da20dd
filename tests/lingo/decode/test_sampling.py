"""Sampling: choices against slow NumPy; the loop, with a model whose every score depends on all
tokens before, against a slow loop that computes the whole text anew for each token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.decode.sampling import Sampling, draw, nucleus
from lingo.ops import random
from tests.lingo.decode.scores import END, Model, batch_of, decode

LOGITS = np.log(np.array([[0.1, 0.4, 0.2, 0.3], [0.5, 0.25, 0.15, 0.1]], np.float32))
LAST = np.float32(1 - 2**-24)  # the largest number that is drawn


def tokens(uniform: float, logits: np.ndarray = LOGITS, **settings: Any) -> list[int]:
    rows = np.full(len(logits), uniform, np.float32)
    return Sampling.params(**settings).build().choose(tf.constant(logits), rows).numpy().tolist()


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True), dtype=np.float64)
    return powers / powers.sum(-1, keepdims=True)


def expected_probabilities(
    logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None
) -> np.ndarray:
    """The published order, one row and one token at a time."""
    result = np.zeros(logits.shape)
    for row, out in zip(logits, result, strict=True):
        scaled = softmax(row / temperature)
        order = sorted(range(len(row)), key=lambda i: -row[i])[: top_k or len(row)]
        total, reached, kept = scaled[order].sum(), 0.0, []
        for i in order:
            if reached < (top_p or 1.0):
                kept.append(i)
            reached += scaled[i] / total
        out[kept] = scaled[kept] / scaled[kept].sum()
    return result


@pytest.mark.parametrize("top_p", [None, 0.25, 0.7])
@pytest.mark.parametrize("top_k", [None, 3, 9])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_frequencies_are_those_of_temperature_then_top_k_then_nucleus(temperature, top_k, top_p):
    logits = np.random.default_rng(0).normal(size=[1, 6]).astype(np.float32)
    sampling = Sampling.params(temperature=temperature, top_k=top_k, top_p=top_p).build()
    num = 20_000
    chosen = sampling.choose(
        tf.repeat(logits, num, axis=0), random.uniform(random.root_key(1), num)
    )
    found = np.bincount(chosen, minlength=6) / num
    expected = expected_probabilities(logits, temperature, top_k, top_p)[0]
    np.testing.assert_allclose(found, expected, atol=5 * np.sqrt(0.25 / num))
    assert not found[expected == 0].any()


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0, "top_k": 3, "top_p": 0.9},
        {"temperature": 1e-40},
        {"temperature": 1e-6, "top_p": 0.5},
        {"top_k": 1},
        {"top_p": 1e-6},
    ],
)
def test_the_likeliest_token_is_taken_whatever_is_drawn(settings: dict[str, Any]) -> None:
    for uniform in (0.0, 0.5, LAST):
        assert tokens(uniform, **settings) == [1, 0]
        assert tokens(uniform, 1e6 * LOGITS, **settings) == [1, 0]


def test_all_candidates_are_no_limit() -> None:
    for uniform in np.linspace(0, LAST, 9):
        free = tokens(uniform, temperature=1.0)
        assert {*free} <= {0, 1, 2, 3}
        everything = tokens(uniform, temperature=1.0, top_k=100, top_p=1.0)
        assert tokens(uniform, temperature=1.0, top_k=4) == everything


def test_the_nucleus_has_the_token_that_reaches_the_probability() -> None:
    ordered = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    for top_p, size in ((0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (1.0, 4)):
        assert np.isfinite(nucleus(tf.constant(ordered), top_p)).sum() == size


def test_what_is_impossible_is_never_drawn() -> None:
    logits = tf.constant([[-np.inf, 0.0, -np.inf, 1.0, -np.inf]] * 3, tf.float32)
    assert draw(logits, tf.constant([0.0, 0.5, LAST])).numpy().tolist() == [1, 3, 3]


def test_the_largest_number_stays_below_the_sum_of_many_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=[50, 1000]).astype(np.float32)
    assert draw(tf.constant(logits), np.full(50, LAST)).numpy().max() < 1000


V, N = 7, 6
PROMPTS = [[2, 5], [2, 3, 4, 6, 6], [2, 6, 3], [2, END, 3, END]]  # an end inside ends nothing
MODEL = Model(0, V)


def run(prompts: Any = PROMPTS, rows: Any = None, **settings: Any) -> tuple[np.ndarray, ...]:
    """Returns tokens and log-probabilities, [B, S, N]."""
    options = {name: settings.pop(name) for name in ("key", "xla") if name in settings}
    sampling = Sampling.params(**{"max_tokens": N, **settings}).build()
    return decode(MODEL, sampling, prompts, rows=rows, **options)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.5, "top_k": 3}])
def test_log_probabilities_are_those_of_computing_all_anew(settings: dict[str, Any]) -> None:
    tokens, log_probs = run(**settings)
    for prompt, row, found in zip(PROMPTS, tokens[:, 0], log_probs[:, 0], strict=True):
        text = list(prompt)
        for token, value in zip(row.tolist(), found, strict=True):
            expected = MODEL.log_probs(text)
            assert value == pytest.approx(expected[token], abs=1e-5)
            assert token == expected.argmax() or settings["temperature"] > 0
            text.append(token)
            if token == END:
                break
    assert len({*map(tuple, tokens[:, 0].tolist())}) >= 3


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    together, _ = run(temperature=1.5)
    for i, prompt in enumerate(PROMPTS):
        alone, _ = run([prompt], [i], temperature=1.5)
        np.testing.assert_array_equal(alone[0], together[i])


def test_a_sample_does_not_depend_on_how_many_there_are() -> None:
    two, _ = run(temperature=1.5, num_samples=2)
    five, _ = run(temperature=1.5, num_samples=5)
    np.testing.assert_array_equal(two, five[:, :2])
    assert len({*map(tuple, five[0].tolist())}) > 1


def test_another_number_or_key_draws_other_tokens() -> None:
    one, _ = run([[2, 5]], [0], temperature=3.0)
    assert (run([[2, 5]], [1], temperature=3.0)[0] != one).any()
    assert (run([[2, 5]], [0], key=random.root_key(1), temperature=3.0)[0] != one).any()


def test_xla_gives_the_same_tokens() -> None:
    settings = {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "num_samples": 2}
    plain, compiled = run(**settings), run(xla=True, **settings)
    np.testing.assert_array_equal(plain[0], compiled[0])
    np.testing.assert_allclose(plain[1], compiled[1], rtol=1e-5)


def test_nothing_follows_an_end() -> None:
    tokens, _ = run(temperature=2.0, num_samples=20)
    for row in tokens.reshape(-1, N).tolist():
        if END in row:
            assert set(row[row.index(END) :]) == {END}
    assert (tokens == END).any()


def test_the_loop_ends_when_all_rows_are_done() -> None:
    steps = []

    def always_ends(tokens: tf.Tensor, index: tf.Tensor, caches: Any) -> Any:
        tf.py_function(lambda: steps.append(1), [], [])
        return tf.one_hot(tf.fill(tf.shape(tokens)[:1], END), V), caches

    batch, sampling = batch_of([[2], [2, 3, 4]]), Sampling.params(max_tokens=50, temperature=0.0)
    program = tf.function(
        lambda: sampling.build().decode(always_ends, {}, batch, random.root_key(0)), autograph=False
    )
    assert (program()["tokens"].numpy()[0] == END).all()
    assert len(steps) <= 3, "the prefix, and two tokens of the longer prompt"
