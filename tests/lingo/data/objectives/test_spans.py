"""What is taken out of a text: T5's counts, all ways alike, and the text comes back."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest

from lingo.data.objectives.spans import Noise, corrupt, counts, noise_mask, text_length
from lingo.ops import random

T5 = Noise(density=0.15, mean_span_length=3.0)
SENTINELS = np.arange(1000, 1100, dtype=np.int32)
END = 1


def key(number: int = 0) -> random.Key:
    return random.fold(random.root_key(3), number)


def runs(mask: np.ndarray) -> list[tuple[bool, int]]:
    """Returns (value, length) of the runs of a mask."""
    return [(bool(value), len(list(run))) for value, run in itertools.groupby(mask.tolist())]


def test_lengths_are_those_of_t5() -> None:
    assert text_length(512, T5) == 568
    assert counts(568, T5) == (85, 28, 512, 114)


@pytest.mark.parametrize("noise", [T5, Noise(0.5, 1.0), Noise(0.9, 1.0), Noise(0.3, 12.0)])
@pytest.mark.parametrize("source_length", [3, 4, 17, 64, 100])
def test_the_text_is_the_longest_whose_source_fits(noise: Noise, source_length: int) -> None:
    length = text_length(source_length, noise)
    assert counts(length, noise).source <= source_length < counts(length + 1, noise).source


@pytest.mark.parametrize("noise", [T5, Noise(0.5, 1.0), Noise(0.9, 1.0), Noise(0.3, 12.0)])
@pytest.mark.parametrize("num_tokens", [2, 3, 10, 65])
def test_a_mask_has_as_much_noise_and_as_many_spans_as_counts_say(
    noise: Noise, num_tokens: int
) -> None:
    wanted = counts(num_tokens, noise)
    for number in range(20):
        mask = noise_mask(num_tokens, noise, key(number))
        found = runs(mask)
        assert len(mask) == num_tokens
        assert mask.sum() == wanted.noise
        assert [value for value, _ in found] == [False, True] * wanted.spans


def test_a_mask_is_a_function_of_its_key() -> None:
    np.testing.assert_array_equal(noise_mask(50, T5, key(1)), noise_mask(50, T5, key(1)))
    assert noise_mask(50, T5, key(1)).tolist() != noise_mask(50, T5, key(2)).tolist()


def test_all_masks_are_equally_likely() -> None:
    noise = Noise(density=0.5, mean_span_length=2.0)  # of 8: 4 in 2 spans, so 3 x 3 masks
    found = collections.Counter(tuple(noise_mask(8, noise, key(n)).tolist()) for n in range(4500))
    assert len(found) == 9
    assert max(abs(n - 500) for n in found.values()) < 5 * np.sqrt(500)


def slow(ids: list[int], mask: list[bool]) -> tuple[list[int], list[int]]:
    """Returns source and target, token by token."""
    source, target, sentinels = [], [], iter(SENTINELS.tolist())
    before = False
    for token, noisy in zip(ids, mask, strict=True):
        if noisy and not before:
            sentinel = next(sentinels)
            source.append(sentinel)
            target.append(sentinel)
        (target if noisy else source).append(token)
        before = noisy
    return [*source, END], [*target, END]


@pytest.mark.parametrize("num_tokens", [2, 7, 568])
def test_source_and_target_are_those_of_a_loop(num_tokens: int) -> None:
    ids = np.random.default_rng(0).integers(3, 259, num_tokens).astype(np.int32)
    for number in range(10):
        mask = noise_mask(num_tokens, T5, key(number))
        found = corrupt(ids, mask, SENTINELS, end_id=END)
        source, target = found.source.tolist(), found.target.tolist()
        assert (source, target) == slow(ids.tolist(), mask.tolist())
        assert (len(source), len(target)) == counts(num_tokens, T5)[2:]
