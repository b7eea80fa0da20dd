"""Random spans to remove from a text (Raffel et al. 2020, sec. 3.1.4), drawn as T5's code does.

A text of n tokens has round(n * noise_density) tokens of noise, at least one. The number of spans
follows from their mean length; kept and noisy spans alternate, beginning with a kept one. All ways
of cutting the noise into that many spans are equally likely, as are those of cutting the rest. So
the lengths of source and target depend on n alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.data.pairs.pair import Pair
from lingo.ops import random


class Noise(NamedTuple):
    """How much is removed from texts."""

    density: float  # share of the tokens that is removed
    mean_span_length: float  # of a removed span, in tokens


class Counts(NamedTuple):
    """The numbers of tokens and spans that a text is divided into."""

    noise: int  # removed tokens
    spans: int  # removed spans: the source, and the target, has a sentinel for each
    source: int  # tokens of the source: the kept ones, sentinels and an end
    target: int  # tokens of the target: the removed ones, sentinels and an end


def counts(num_tokens: int, noise: Noise) -> Counts:
    """Returns the counts of a text of `num_tokens`, 2 or more."""
    num_noise = min(max(round(num_tokens * noise.density), 1), num_tokens - 1)
    num_kept = num_tokens - num_noise
    spans = min(max(round(num_noise / noise.mean_span_length), 1), num_noise, num_kept)
    return Counts(num_noise, spans, num_kept + spans + 1, num_noise + spans + 1)


def text_length(source_length: int, noise: Noise) -> int:
    """Returns the length of the longest text whose source has at most `source_length` (>= 3)."""
    length = source_length - 1
    while counts(length + 1, noise).source <= source_length:
        length += 1
    return length


def noise_mask(num_tokens: int, noise: Noise, key: random.Key) -> np.ndarray:
    """Returns which tokens of a text (2 or more) are removed, bool [num_tokens].

    It is a function of the key, whose words are scalars on the host.
    """
    num_noise, spans, *_ = counts(num_tokens, noise)
    kept_spans = _segments(num_tokens - num_noise, spans, random.fold(key, 0))
    noisy_spans = _segments(num_noise, spans, random.fold(key, 1))
    lengths = np.stack([kept_spans, noisy_spans], axis=1).ravel()
    return np.repeat(np.tile([False, True], spans), lengths)


def corrupt(ids: np.ndarray, mask: np.ndarray, sentinels: np.ndarray, *, end_id: int) -> Pair:
    """Returns the source, with a sentinel for each span, and the target, the spans after theirs.

    Args:
        ids: int32 [num_tokens], the text.
        mask: bool [num_tokens], the tokens that are removed; False for the first.
        sentinels: int32 [at least the number of spans].
        end_id: follows source and target.
    """
    begins = np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]]))
    marked = np.insert(ids, begins, sentinels[: len(begins)])
    source = marked[~np.insert(mask, begins, False)]
    target = marked[np.insert(mask, begins, True)]
    return Pair(*(np.append(side, end_id).astype(np.int32) for side in (source, target)))


def _segments(num_tokens: int, num_segments: int, key: random.Key) -> np.ndarray:
    """Returns random lengths, each 1 or more, that add up to `num_tokens`, int64 [num_segments]."""
    words = random.host_bits(key, 0, num_tokens - 1)
    cuts = np.sort(np.argsort(words, kind="stable")[: num_segments - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [num_tokens]]))
