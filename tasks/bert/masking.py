"""Chooses and replaces the tokens of a row that BERT predicts (Devlin et al. 2019, sec. 3.1).

The model predicts 15 % of the tokens. In place of these tokens it reads [MASK] (80 %), a random
token (10 %) or the token itself (10 %). The choice is of single tokens, of whole words or of spans
of words, and is a function of (ids, key): the same key gives the same row.

Axes: T tokens of a row, K predictions, V vocabulary, W words, P chosen tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lingo.config import ranges
from lingo.config.params import Configurable, ParamError
from lingo.data.files import DataError
from lingo.data.tokenizer import Tokenizer
from lingo.ops import random

MASK = "[MASK]"


class Vocabulary(NamedTuple):
    """The properties of a tokenizer that masking reads."""

    mask_id: int
    continues_word: np.ndarray  # bool [V]: tokens that continue a word, such as "##ing"
    is_never_masked: np.ndarray  # bool [V]: [CLS], [SEP] and padding
    random_ids: np.ndarray  # int32 [number of them], tokens that may replace a chosen one


class Choice(NamedTuple):
    """The chosen tokens of a row.

    All tokens of a group are replaced by [MASK], or all by random tokens, or all stay unchanged.
    """

    positions: np.ndarray  # int64 [P], each once
    groups: np.ndarray  # int64 [P], below T, the group of each token


class MaskedRow(NamedTuple):
    """A row after masking, and the tokens to predict."""

    tokens: np.ndarray  # int32 [T], as the model reads them
    positions: np.ndarray  # int32 [K], of the chosen tokens, ascending, then 0
    ids: np.ndarray  # int32 [K], the original tokens at these positions, then 0
    weights: np.ndarray  # float32 [K], 1 for chosen tokens, then 0


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Returns properties of a tokenizer; raises DataError if it lacks [MASK] or word boundaries."""
    mask_id, special = tokenizer.special_id(MASK), tokenizer.special_ids()
    if mask_id is None:
        raise DataError(
            f"tokenizer {tokenizer.describe()} has no token {MASK}, which replaces tokens to"
            " predict: take LearnedWordPieces, or a HuggingFaceTokenizer of BERT's."
        )
    is_never_masked = np.zeros(tokenizer.vocab_size, bool)
    is_never_masked[[tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id]] = True
    random_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), [*special, mask_id])
    return Vocabulary(
        mask_id=mask_id,
        continues_word=tokenizer.word_continuations(),
        is_never_masked=is_never_masked,
        random_ids=random_ids.astype(np.int32),
    )


class Masking(Configurable, interface=True):
    """Chooses tokens to predict. A subclass defines `choose`."""

    rate: float = 0.15  # share of a row's tokens that is chosen: at least one, at most K
    mask_rate: float = 0.8  # share of the chosen tokens that [MASK] replaces
    random_rate: float = 0.1  # share of the chosen tokens that a random token replaces

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "rate")
        if min(p.mask_rate, p.random_rate) < 0 or p.mask_rate + p.random_rate > 1:
            raise ParamError(
                f"mask_rate={p.mask_rate} and random_rate={p.random_rate} are shares of the chosen"
                " tokens: neither is below 0, their sum is at most 1"
            )

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        """Returns at most `limit` chosen tokens of a row.

        Args:
            words: int64 [W, 2], the first position of each word and the position after its last.
            limit: the largest number of tokens, at least 1. Whole words exceed it if every word is
                longer.
            key: a random key of two scalars, in NumPy.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose")

    def mask(
        self, ids: np.ndarray, key: random.Key, *, vocabulary: Vocabulary, max_predictions: int
    ) -> MaskedRow:
        """Returns a row with at most K = `max_predictions` tokens to predict.

        Args:
            ids: int32 [T], a row of tokens, padding included.
            key: a random key of two scalars, in NumPy.
            vocabulary: properties of the row's tokenizer.
            max_predictions: K.
        """
        words = find_words(ids, vocabulary)
        num_tokens = int((words[:, 1] - words[:, 0]).sum())
        limit = min(max(round(num_tokens * self.p.rate), 1), max_predictions)
        positions, groups = self.choose(words, limit, random.fold(key, 0))
        order = np.argsort(positions)[:max_predictions]
        positions, groups = positions[order], groups[order]
        fate = random.uniform(random.fold(key, 1), len(ids))[groups]
        replacement_bits = random.bits(random.fold(key, 2), len(ids))[positions].astype(np.uint64)
        choices = vocabulary.random_ids
        replacements = choices[(replacement_bits * np.uint64(len(choices))) >> np.uint64(32)]
        tokens = ids.copy()
        is_replaced = fate < self.p.mask_rate + self.p.random_rate
        tokens[positions[is_replaced]] = replacements[is_replaced]
        tokens[positions[fate < self.p.mask_rate]] = vocabulary.mask_id
        num, size = len(positions), max_predictions
        out = MaskedRow(
            tokens=tokens,
            positions=np.zeros(size, np.int32),
            ids=np.zeros(size, np.int32),
            weights=np.zeros(size, np.float32),
        )
        out.positions[:num], out.ids[:num], out.weights[:num] = positions, ids[positions], 1
        return out


def find_words(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Returns the words of a row, int64 [W, 2], as `Masking.choose` takes them; ids: int32 [T].

    A continuation piece with no piece before it, as at the start of a cut text, begins a word.
    """
    is_text = ~vocabulary.is_never_masked[ids]
    follows_text = np.concatenate([[False], is_text[:-1]])
    begins = np.flatnonzero(is_text & ~(vocabulary.continues_word[ids] & follows_text))
    stops = np.flatnonzero(~is_text | ~vocabulary.continues_word[ids])
    after = np.searchsorted(stops, begins, side="right")
    ends = np.append(stops, len(ids))[after]
    return np.stack([begins, ends], axis=1)


class TokenMasking(Masking):
    """Single tokens, all equally likely (Devlin et al. 2019, sec. 3.1)."""

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        positions = _positions(words)
        chosen = positions[_shuffle(len(positions), key)[:limit]]
        return Choice(chosen, chosen)


class WholeWordMasking(Masking):
    """Whole words, as in the authors' later models: a word is chosen with all of its pieces.

    Words are taken in random order. A word with more pieces than may still be chosen is skipped. In
    a row whose words are all too long, a shortest one is chosen. The pieces of a word may get
    different replacements.
    """

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        chosen, left = list[int](), limit
        for word in _shuffle(len(words), key).tolist():
            size = int(words[word, 1] - words[word, 0])
            if size <= left:
                chosen.append(word)
                left -= size
            if not left:
                break
        positions = _positions(words[chosen or _shortest(words)])
        return Choice(positions, positions)


class SpanMasking(Masking):
    """Spans of whole words (SpanBERT, Joshi et al. 2020, sec. 3.1).

    The number of a span's words is geometric (p = 0.2) and at most 10, with a mean of 3.8. A span
    begins at a random word that is not chosen yet. It ends before a chosen word, at the end of its
    text, or where the limit allows no further word. All tokens of a span are replaced by [MASK], or
    all by random tokens, or all stay unchanged.

    SpanBERT's own code cuts the last word of a row's last span. Here every word stays whole, and in
    a row whose words are all too long, a shortest one is chosen.
    """

    geometric: float = 0.2  # p of the number of words, in (0, 1]; 1: every span is one word
    max_words: int = 10  # of a span

    def check(self) -> None:
        super().check()
        if not 0 < self.p.geometric <= 1:
            raise ParamError(f"geometric={self.p.geometric} is not above 0 and at most 1")
        ranges.check_positive(self.p, "max_words")

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        num_words, left, num_spans = len(words), limit, 0
        begin, end = words[:, 0].tolist(), words[:, 1].tolist()
        span_of = np.full(num_words, -1)
        lengths = self.span_lengths(num_words, random.fold(key, 0)).tolist()
        starts = _shuffle(num_words, random.fold(key, 1)).tolist()
        for start, length in zip(starts, lengths, strict=True):
            word = start
            while (
                word < min(start + length, num_words)
                and span_of[word] < 0
                and end[word] - begin[word] <= left
                and (word == start or begin[word] == end[word - 1])
            ):
                span_of[word] = num_spans
                left -= end[word] - begin[word]
                word += 1
            num_spans += word > start
            if not left:
                break
        if not num_spans:
            span_of[_shortest(words)] = 0
        chosen = np.flatnonzero(span_of >= 0)
        sizes = words[chosen, 1] - words[chosen, 0]
        return Choice(_positions(words[chosen]), np.repeat(span_of[chosen], sizes))

    def span_lengths(self, count: int, key: random.Key) -> np.ndarray:
        """Returns the lengths of random spans in words, int64 [count], each in 1..max_words."""
        length = np.arange(1, self.p.max_words + 1)
        shares = self.p.geometric * (1 - self.p.geometric) ** (length - 1)
        ends = np.cumsum(shares / shares.sum())
        ends[-1] = 1.0
        return length[np.searchsorted(ends, random.uniform(key, count), side="right")]


def _shortest(words: np.ndarray) -> list[int]:
    """Returns the index of the first of the shortest words, [1], or [] without words."""
    return [int((words[:, 1] - words[:, 0]).argmin())] if len(words) else []


def _shuffle(size: int, key: random.Key) -> np.ndarray:
    """Returns a random order of 0, ..., size - 1, int64 [size]."""
    return np.argsort(random.host_bits(key, 0, size), kind="stable")


def _positions(words: np.ndarray) -> np.ndarray:
    """Returns the positions of all tokens of words [W, 2], int64 [number of tokens]."""
    sizes = words[:, 1] - words[:, 0]
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(words[:, 0] - before, sizes)
