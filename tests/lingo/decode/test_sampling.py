"""Choosing tokens: against slow NumPy, and the limits of each setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.decode.sampling import Sampling, draw, log_prob, nucleus
from lingo.lazy import tf
from lingo.ops import random

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
def test_frequencies_are_those_of_temperature_then_top_k_then_nucleus(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
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


def test_temperature_zero_takes_the_likeliest_whatever_is_drawn() -> None:
    for uniform in (0.0, 0.5, LAST):
        assert tokens(uniform, temperature=0.0, top_k=3, top_p=0.9) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-40, 1e-6])
def test_no_temperature_is_too_small(temperature: float) -> None:
    assert tokens(LAST, temperature=temperature) == [1, 0]
    assert tokens(LAST, 1e6 * LOGITS, temperature=temperature, top_p=0.5) == [1, 0]


def test_one_candidate_is_the_likeliest() -> None:
    assert tokens(LAST, top_k=1) == tokens(LAST, top_p=1e-6) == [1, 0]


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
    chosen = draw(tf.constant(logits), np.full(50, LAST)).numpy()
    assert chosen.max() < 1000


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.8}, {"temperature": 1.5}])
def test_xla_chooses_the_same(settings: dict[str, Any]) -> None:
    sampling = Sampling.params(**settings).build()
    logits = tf.constant(np.random.default_rng(0).normal(size=[64, 9]).astype(np.float32))
    uniform = random.uniform(random.root_key(0), 64)
    compiled = tf.function(sampling.choose, autograph=False, jit_compile=True)
    np.testing.assert_array_equal(compiled(logits, uniform), sampling.choose(logits, uniform))


def test_log_probabilities_are_those_of_the_model() -> None:
    expected = np.log([0.4, 0.1])
    np.testing.assert_allclose(log_prob(tf.constant(LOGITS), [1, 3]), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0 is not positive"),
        ({"num_samples": 0}, "num_samples=0 is not positive"),
        ({"top_k": 0}, "top_k=0 is not positive"),
        ({"temperature": -0.5}, r"temperature=-0\.5 is negative; 0 takes the likeliest"),
        ({"top_p": 0.0}, r"top_p=0\.0 is not in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1\.5 is not in \(0, 1\]"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        Sampling.params(**settings).build()
