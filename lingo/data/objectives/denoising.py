"""Objectives on rows of running text: a part of each text is removed, and predicted from the rest.

`SpanCorruption`, T5's objective, removes spans. A text of n tokens has round(n * noise_density)
removed, at least one (Raffel et al. 2020, sec. 3.1.4, and T5's code). The number of spans follows
from their mean length. Kept and removed spans alternate, beginning with a kept span. All ways to
cut the removed tokens into this number of spans are equally likely, and so are all ways to cut the
kept tokens. So the lengths of source and target depend on n alone.

Axes: B examples (rows), S tokens per source row, T tokens per target row, L tokens of text per row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lingo.config.params import ParamError
from lingo.data.objectives.sentinels import SentinelTokenizer
from lingo.data.packing import Packing, Stream
from lingo.data.pairs.pair import Pair
from lingo.data.pairs.paired_input import Lengths, PairedInput, Row
from lingo.data.prompt import Prompt
from lingo.data.tokenizer import Tokenizer
from lingo.ops import random


class Denoising(PairedInput):
    """Rows of a stream of documents; each row becomes one pair.

    The stream has an end token after each document and is cut every L tokens, as T5's is: a row may
    have several documents. An epoch has every token once. Which tokens of a row are removed depends
    on the seed and the row's `example_id`, so the choice differs from epoch to epoch.

    A subclass defines the length of a text (`text_length`) and of rows (`lengths`), which tokens
    are removed (`mask`), and the pair that results (`pair`).
    """

    @property
    def text_length(self) -> int:
        """L, the tokens of text per row."""
        raise NotImplementedError(f"{type(self).__name__} has no text_length")

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        """Returns whether to remove each token of a text, bool [num_tokens]; its length is in 2..L.

        `key` has two plain numbers, not tensors.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mask")

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        """Returns source and target of a text, int32 [num_tokens]; `mask` marks removed tokens."""
        raise NotImplementedError(f"{type(self).__name__} has no pair")

    def row(self, number: int) -> Row:
        pieces = self.pieces(number)
        ids = np.concatenate([np.zeros(0, np.int32), *(self._sequence(p)[1:] for p in pieces)])
        if len(ids) < 2:  # no token, or the last one of an epoch, with nothing to predict it from
            return Row([], 0)
        mask = self.mask(len(ids), self._key(number))
        is_text = ids != self.tokenizer.end_id
        share = is_text[mask].sum() / max(is_text.sum(), 1)
        return Row([self.pair(ids, mask)], round(share * sum(map(self._num_bytes, pieces))))

    def _make_plan(self) -> Packing:
        seed = self.p.seed if self.p.shuffle else None
        return Stream(self.index.units + 1, row_length=self.text_length, seed=seed)

    def _key(self, number: int) -> random.Key:
        root = random.fold(random.root_key(self.p.seed), random.text_hash("denoising"))
        return random.fold(random.fold(root, number >> 32), number & 0xFFFFFFFF)


# ---- a prefix ------------------------------------------------------------------------------------


class PrefixText(Denoising):
    """Texts split at a random place (Raffel et al. 2020, sec. 3.2.3; Liu et al. 2018, sec. 4.2.4).

    Every split that leaves at least one token on each side is equally likely. With an encoder, the
    source gets an end token; the target gets none, because the text continues in the next row. S
    and T are then `length` each. A decoder alone has all of the text in one row of `length`.
    """

    length: int  # tokens of text per row

    def check(self) -> None:
        super().check()
        if self.p.length < 2:
            raise ParamError(f"length={self.p.length} is too short to split a text: at least 2")

    @property
    def text_length(self) -> int:
        return self.p.length

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.p.length, self.p.length, self.p.length)

    def prompt(self, text: str) -> Prompt:
        prompt = super().prompt(text)._replace(is_answered=False)
        if self.p.form == "encoder_decoder":
            return prompt
        return prompt._replace(tokens=prompt.tokens[:-1])  # without an end token, as in `pair`

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        prefix_size = 1 + int(float(random.uniform(key)) * (num_tokens - 1))
        return np.arange(num_tokens) >= prefix_size

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        end = [self.tokenizer.end_id] if self.p.form == "encoder_decoder" else []
        return Pair(np.append(ids[~mask], end).astype(np.int32), ids[mask])


# ---- spans ---------------------------------------------------------------------------------------


class Noise(NamedTuple):
    """How much is removed from texts."""

    density: float  # share of the tokens that is removed
    mean_span_length: float  # mean number of tokens per removed span


class Counts(NamedTuple):
    """The numbers of tokens and spans that a text is divided into."""

    noise: int  # removed tokens
    spans: int  # removed spans; source and target each have a sentinel per span
    source: int  # tokens of the source: kept tokens, sentinels and an end token
    target: int  # tokens of the target: removed tokens, sentinels and an end token


def counts(num_tokens: int, noise: Noise) -> Counts:
    """Returns how many tokens and spans a text of `num_tokens` (2 or more) is divided into."""
    num_noise = min(max(round(num_tokens * noise.density), 1), num_tokens - 1)
    num_kept = num_tokens - num_noise
    spans = min(max(round(num_noise / noise.mean_span_length), 1), num_noise, num_kept)
    return Counts(num_noise, spans, num_kept + spans + 1, num_noise + spans + 1)


def text_length(source_length: int, noise: Noise) -> int:
    """Returns the most tokens of a text whose source has at most `source_length` (>= 3) tokens."""
    length = source_length - 1
    while counts(length + 1, noise).source <= source_length:
        length += 1
    return length


def noise_mask(num_tokens: int, noise: Noise, key: random.Key) -> np.ndarray:
    """Returns whether to remove each of a text's tokens (2 or more), bool [num_tokens].

    `key` has two plain numbers, not tensors.
    """
    num_noise, spans, *_ = counts(num_tokens, noise)
    kept_spans = _segments(num_tokens - num_noise, spans, random.fold(key, 0))
    noisy_spans = _segments(num_noise, spans, random.fold(key, 1))
    lengths = np.stack([kept_spans, noisy_spans], axis=1).ravel()
    return np.repeat(np.tile([False, True], spans), lengths)


def corrupt(ids: np.ndarray, mask: np.ndarray, sentinels: np.ndarray, *, end_id: int) -> Pair:
    """Returns the pair of source and target that removing spans from a text gives.

    The source has a sentinel in place of each removed span. The target has each sentinel followed
    by its span. Both end with `end_id`. `mask`, bool [num_tokens], marks the removed tokens of
    `ids`, int32 [num_tokens]; it never marks the first token.
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


class SpanCorruption(Denoising):
    """Removes spans from texts, to be predicted: T5's objective (Raffel et al. 2020, sec. 3.1.4).

    The source has a sentinel in place of each removed span, as in "Thank you <0> me to <1> party
    <2> week". The target has each sentinel followed by its span: "<0> for inviting <1> your <2>
    last". Rows are full, so L and T follow from `source_length`: for 512, a row has 568 tokens of
    text and 114 tokens of target. As in T5's code, no sentinel ends the target.
    """

    source_length: int = 512  # tokens per row of sources: kept tokens, sentinels, an end token
    noise_density: float = 0.15  # share of a text's tokens that is removed
    mean_span_length: float = 3.0  # tokens per removed span
    tokenizer: Tokenizer = SentinelTokenizer  # turns text into ids, and has the sentinels

    def check(self) -> None:
        super().check()
        p = self.p
        if p.source_length < 3:
            raise ParamError(f"source_length={p.source_length} is less than 3, the minimum")
        if not 0 < p.noise_density < 1:
            raise ParamError(f"noise_density={p.noise_density} is not between 0 and 1")
        if p.mean_span_length < 1:
            raise ParamError(f"mean_span_length={p.mean_span_length} is less than 1 token")

    def setup(self) -> None:
        super().setup()
        if not isinstance(self.tokenizer, SentinelTokenizer):
            raise ParamError(
                f"tokenizer is {type(self.tokenizer).__name__}, which has no ids for removed spans:"
                f" use SentinelTokenizer(tokenizer={type(self.tokenizer).__name__}(...))"
            )
        num_sentinels, num_spans = self.tokenizer.p.num_sentinels, self._counts.spans
        if num_sentinels < num_spans:
            raise ParamError(
                f"source_length={self.p.source_length} needs {num_spans} spans per row, but there"
                f" are {num_sentinels} sentinels: set tokenizer.num_sentinels={num_spans}"
            )

    @functools.cached_property
    def text_length(self) -> int:
        return text_length(self.p.source_length, self._noise)

    @property
    def lengths(self) -> Lengths:
        source, target = self.p.source_length, self._counts.target
        return Lengths(source, target, source + target)

    def source_ids(self, text: str) -> np.ndarray:
        return self.tokenizer.encode_marked(text)

    def mask(self, num_tokens: int, key: random.Key) -> np.ndarray:
        return noise_mask(num_tokens, self._noise, key)

    def pair(self, ids: np.ndarray, mask: np.ndarray) -> Pair:
        tokenizer = self.tokenizer
        return corrupt(ids, mask, tokenizer.sentinels, end_id=tokenizer.end_id)

    @property
    def _noise(self) -> Noise:
        return Noise(self.p.noise_density, self.p.mean_span_length)

    @property
    def _counts(self) -> Counts:
        return counts(self.text_length, self._noise)
