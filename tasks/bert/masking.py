"""Which tokens of a row are masked, and what is read in their place (Devlin et al. 2019, sec. 3.1).

Of the tokens of a row, 15 % are chosen; the model predicts them. Of these, 80 % are read as [MASK],
10 % as a random token and 10 % as they are. What is chosen is a single token, a whole word, or a
span of words, and is a function of (ids, key): the same key gives the same row.

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
    """What masking knows of a tokenizer."""

    mask_id: int
    continues: np.ndarray  # bool [V], whether a token continues a word
    is_fixed: np.ndarray  # bool [V], whether it is [CLS], [SEP] or padding, never chosen
    random_ids: np.ndarray  # int32 [number of them], which may stand in place of a chosen token


class Choice(NamedTuple):
    """The chosen tokens of a row."""

    positions: np.ndarray  # int64 [P], each once
    groups: np.ndarray  # int64 [P], below T; tokens of a group are masked, replaced or kept alike


class MaskedRow(NamedTuple):
    """A row whose chosen tokens are to be predicted."""

    tokens: np.ndarray  # int32 [T], what is read
    positions: np.ndarray  # int32 [K], of the chosen tokens, ascending, then 0
    ids: np.ndarray  # int32 [K], the tokens that were there, then 0
    weights: np.ndarray  # float32 [K], 1 for chosen tokens, then 0


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Returns what masking needs; raises DataError if a tokenizer has no [MASK] or no words."""
    mask_id, special = tokenizer.special_id(MASK), tokenizer.special_ids()
    if mask_id is None:
        raise DataError(
            f"tokenizer {tokenizer.describe()} has no token {MASK}, which stands for tokens to"
            " predict: take LearnedWordPieces, or a HuggingFaceTokenizer of BERT's."
        )
    is_fixed = np.zeros(tokenizer.vocab_size, bool)
    is_fixed[[tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id]] = True
    random_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), [*special, mask_id])
    return Vocabulary(
        mask_id=mask_id,
        continues=tokenizer.word_continuations(),
        is_fixed=is_fixed,
        random_ids=random_ids.astype(np.int32),
    )


class Masking(Configurable, interface=True):
    """Chooses tokens to predict. A subclass defines `choose`."""

    rate: float = 0.15  # share of the tokens that is chosen; at least one, at most K
    mask_rate: float = 0.8  # share of the chosen that is read as [MASK]
    random_rate: float = 0.1  # share of the chosen that is read as a random token

    def check(self) -> None:
        p = self.p
        ranges.check_fraction(p, "rate")
        if min(p.mask_rate, p.random_rate) < 0 or p.mask_rate + p.random_rate > 1:
            raise ParamError(
                f"mask_rate={p.mask_rate} and random_rate={p.random_rate} are shares of the chosen"
                " tokens: neither is below 0, their sum is at most 1"
            )

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        """Returns at most `limit` tokens of a row.

        The words, int64 [W, 2], are (first position, position after the last), in order. The words
        of the key are scalars on the host.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose")

    def mask(
        self, ids: np.ndarray, key: random.Key, *, vocabulary: Vocabulary, max_predictions: int
    ) -> MaskedRow:
        """Returns a row with at most K = `max_predictions` tokens to predict.

        Args:
            ids: int32 [T], a row of tokens, padding included.
            key: its words are scalars on the host.
            vocabulary: which tokens there are.
            max_predictions: K.
        """
        words = find_words(ids, vocabulary)
        num_tokens = int((words[:, 1] - words[:, 0]).sum())
        limit = min(max(round(num_tokens * self.p.rate), 1), max_predictions)
        positions, groups = self.choose(words, limit, random.fold(key, 0))
        order = np.argsort(positions)
        positions, groups = positions[order], groups[order]
        fate = random.uniform(random.fold(key, 1), len(ids))[groups]
        words_of_bits = random.bits(random.fold(key, 2), len(ids))[positions].astype(np.uint64)
        choices = vocabulary.random_ids
        replacements = choices[(words_of_bits * np.uint64(len(choices))) >> np.uint64(32)]
        tokens = ids.copy()
        is_random = fate < self.p.mask_rate + self.p.random_rate
        tokens[positions[is_random]] = replacements[is_random]
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

    A piece that continues no word, as at the beginning of a text that was cut, begins one.
    """
    is_text = ~vocabulary.is_fixed[ids]
    follows_text = np.concatenate([[False], is_text[:-1]])
    begins = np.flatnonzero(is_text & ~(vocabulary.continues[ids] & follows_text))
    stops = np.flatnonzero(~is_text | ~vocabulary.continues[ids])
    after = np.searchsorted(stops, begins, side="right")
    ends = np.append(stops, len(ids))[after]
    return np.stack([begins, ends], axis=1)


class TokenMasking(Masking):
    """Single tokens, each as likely as any other (Devlin et al. 2019, sec. 3.1)."""

    def choose(self, words: np.ndarray, limit: int, key: random.Key) -> Choice:
        positions = _positions(words)
        chosen = positions[_shuffle(len(positions), key)[:limit]]
        return Choice(chosen, chosen)


class WholeWordMasking(Masking):
    """Whole words, as in BERT's later models: a word is chosen with all of its pieces.

    Words are taken in random order; one with more pieces than may still be chosen is left out. Each
    piece by itself is masked, replaced or kept.
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
        positions = _positions(words[chosen])
        return Choice(positions, positions)


class SpanMasking(Masking):
    """Spans of whole words (SpanBERT, Joshi et al. 2020, sec. 3.1).

    The number of a span's words is geometric (p = 0.2), cut off at 10, so 3.8 in the mean; its
    first word is any that is not chosen yet. A span ends before one that is chosen, at the end of
    its text, and where no more tokens may be chosen. All tokens of a span are masked, replaced or
    kept alike. SpanBERT's own code cuts the last word of a row's last span; here no word is cut.
    """

    geometric: float = 0.2  # p of the number of words
    max_words: int = 10  # of a span

    def check(self) -> None:
        super().check()
        ranges.check_fraction(self.p, "geometric")
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
        chosen = np.flatnonzero(span_of >= 0)
        sizes = words[chosen, 1] - words[chosen, 0]
        return Choice(_positions(words[chosen]), np.repeat(span_of[chosen], sizes))

    def span_lengths(self, count: int, key: random.Key) -> np.ndarray:
        """Returns random numbers of words, int64 [count], each in 1..max_words."""
        length = np.arange(1, self.p.max_words + 1)
        shares = self.p.geometric * (1 - self.p.geometric) ** (length - 1)
        ends = np.cumsum(shares / shares.sum())
        ends[-1] = 1.0
        return length[np.searchsorted(ends, random.uniform(key, count), side="right")]


def _shuffle(size: int, key: random.Key) -> np.ndarray:
    """Returns a random order of 0, ..., size - 1, int64 [size]."""
    return np.argsort(random.host_bits(key, 0, size), kind="stable")


def _positions(words: np.ndarray) -> np.ndarray:
    """Returns the positions of all tokens of words [W, 2], int64 [number of tokens]."""
    sizes = words[:, 1] - words[:, 0]
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(words[:, 0] - before, sizes)
