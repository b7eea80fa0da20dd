"""Sentinels: token ids that mark where spans were removed from a text."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from lingo.config import ranges
from lingo.data.files import DataError, Read
from lingo.data.tokenizer import ByteTokenizer, TokenCounts, Tokenizer

_MARK = re.compile(r"(<extra_id_(?:0|[1-9][0-9]{0,8})>)")


class SentinelTokenizer(Tokenizer):
    """Another tokenizer's ids, followed by sentinels, which `encode` never returns.

    T5 calls them extra ids, and counts from the last id down (Raffel et al. 2020, sec. 3.1.4); here
    the first sentinel is the first id after the other tokenizer's. `decode` writes sentinel 3 as
    <extra_id_3>.
    """

    tokenizer: Tokenizer = ByteTokenizer  # encodes text
    num_sentinels: int = 100  # number of sentinels

    def check(self) -> None:
        ranges.check_positive(self.p, "num_sentinels")

    def setup(self) -> None:
        self.tokenizer = self.p.tokenizer.build()

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size + self.p.num_sentinels

    @property
    def sentinels(self) -> np.ndarray:
        """The ids of the sentinels in the order of their use, int32 [num_sentinels]."""
        return np.arange(self.tokenizer.vocab_size, self.vocab_size, dtype=np.int32)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_id

    @property
    def start_id(self) -> int:
        return self.tokenizer.start_id

    @property
    def end_id(self) -> int:
        return self.tokenizer.end_id

    def describe(self) -> str:
        return f"{self.tokenizer.describe()} and {self.p.num_sentinels} sentinels"

    def encode(self, text: str | bytes) -> np.ndarray:
        return self.tokenizer.encode(text)

    def encode_marked(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [number of tokens], with <extra_id_3> as a sentinel."""
        ids = []
        for part in _MARK.split(text):
            number = int(part[10:-1]) if _MARK.fullmatch(part) else self.p.num_sentinels
            is_sentinel = number < self.p.num_sentinels
            ids.append(self.sentinels[[number]] if is_sentinel else self.encode(part))
        return np.concatenate(ids).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(ids, np.int64)
        numbers = {sentinel: number for number, sentinel in enumerate(self.sentinels.tolist())}
        head, *others = np.split(ids, np.flatnonzero(np.isin(ids, self.sentinels)))
        parts = [  # every part but the head begins with a sentinel
            f"<extra_id_{numbers[int(part[0])]}>{self.tokenizer.decode(part[1:])}"
            for part in others
        ]
        return "".join([self.tokenizer.decode(head), *parts])

    def measure(self, read: Read, size: int) -> TokenCounts:
        return self.tokenizer.measure(read, size)

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.tokenizer.part(read, size, cuts, begin, end)


class OwnSentinelTokenizer(SentinelTokenizer):
    """A tokenizer that has tokens <extra_id_0>, <extra_id_1>, ..., such as T5's published ones.

    These tokens are the sentinels, so a pretrained model's embeddings of them serve again. A text
    that spells such a token gets it, as in `HuggingFaceTokenizer`.
    """

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @functools.cached_property
    def sentinels(self) -> np.ndarray:
        """The ids of the sentinels in the order of their use, int32 [num_sentinels]."""
        ids = []
        for number in range(self.p.num_sentinels):
            sentinel = self.tokenizer.special_id(f"<extra_id_{number}>")
            if sentinel is None:
                raise DataError(
                    f"tokenizer {self.tokenizer.describe()} has no token <extra_id_{number}>:"
                    + (f" set num_sentinels={number}." if number else " take SentinelTokenizer.")
                )
            ids.append(sentinel)
        return np.array(ids, np.int32)

    def describe(self) -> str:
        return f"{self.tokenizer.describe()} and {self.p.num_sentinels} sentinels of its own"
