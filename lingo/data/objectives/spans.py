"""Which spans of a text are taken out of it (Raffel et al. 2020, sec. 3.1.4), as T5's code draws.

A text of n tokens has round(n * noise_density) tokens of noise, at least one, in as many spans as
gives them their mean length; kept and noisy spans take turns, beginning with a kept one. All ways
of cutting the noise into that many spans are equally likely, as are those of cutting the rest. So
the lengths of source and target are known from n alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.data.pairs.pair import Pair
from lingo.ops import random


class Noise(NamedTuple):
    """How much is taken out of texts.

    Attributes:
        density: share of the tokens.
        mean_span_length: in tokens.
    """

    density: float
    mean_span_length: float


class Counts(NamedTuple):
    """What becomes of a text.

    Attributes:
        noise: tokens that are taken out.
        spans: that these are in: so many sentinels stand in the source, and in the target.
        source: tokens of the source: those that are kept, sentinels, and an end.
        target: tokens of the target: those that are taken out, sentinels, and an end.
    """

    noise: int
    spans: int
    source: int
    target: int


def counts(num_tokens: int, noise: Noise) -> Counts:
    """Returns what becomes of a text of two tokens or more."""
    taken = min(max(round(num_tokens * noise.density), 1), num_tokens - 1)
    kept = num_tokens - taken
    spans = min(max(round(taken / noise.mean_span_length), 1), taken, kept)
    return Counts(taken, spans, kept + spans + 1, taken + spans + 1)


def text_length(source_length: int, noise: Noise) -> int:
    """Returns of how many tokens the longest text is whose source has at most `source_length`.

    Args:
        source_length: 3 or more.
        noise: how much is taken out.
    """
    length = source_length - 1
    while counts(length + 1, noise).source <= source_length:
        length += 1
    return length


def noise_mask(num_tokens: int, noise: Noise, key: random.Key) -> np.ndarray:
    """Returns which tokens of a text are taken out, bool [num_tokens]: a function of the key."""
    taken, spans, *_ = counts(num_tokens, noise)
    kept_spans = _segments(num_tokens - taken, spans, random.fold(key, 0))
    noisy_spans = _segments(taken, spans, random.fold(key, 1))
    lengths = np.stack([kept_spans, noisy_spans], axis=1).ravel()
    return np.repeat(np.tile([False, True], spans), lengths)


def corrupt(ids: np.ndarray, mask: np.ndarray, sentinels: np.ndarray, *, end_id: int) -> Pair:
    """Returns a text with a sentinel for every span, and the spans, each after its sentinel.

    Args:
        ids: int32 [N], the text.
        mask: bool [N], what is taken out; not the first token.
        sentinels: int32, one for each span and more.
        end_id: follows source and target.
    """
    begins = np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]]))
    marked = np.insert(ids, begins, sentinels[: len(begins)])
    source = marked[~np.insert(mask, begins, False)]
    target = marked[np.insert(mask, begins, True)]
    return Pair(*(np.append(side, end_id).astype(np.int32) for side in (source, target)))


def _segments(num_tokens: int, num_segments: int, key: random.Key) -> np.ndarray:
    """Returns the lengths of segments of some tokens, int64 [num_segments], none 0."""
    words = random.host_bits(key, 0, num_tokens - 1)
    cuts = np.sort(np.argsort(words, kind="stable")[: num_segments - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [num_tokens]]))
