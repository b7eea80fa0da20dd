"""Sentinels: token ids that mark where spans were removed from a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from lingo.config import ranges
from lingo.data.sources.files import Read
from lingo.data.tokenizer import ByteTokenizer, Measured, Tokenizer


class SentinelTokenizer(Tokenizer):
    """Another tokenizer's ids, followed by sentinels, which `encode` never returns.

    T5 calls them extra ids, and counts from the last id down (Raffel et al. 2020, sec. 3.1.4); here
    the first sentinel is the first id after the other tokenizer's. `decode` writes sentinel 3 as
    <extra_id_3>.
    """

    tokenizer: Tokenizer = ByteTokenizer  # what encodes text
    num_sentinels: int = 100  # how many ids follow

    def check(self) -> None:
        ranges.check_positive(self.p, "num_sentinels")

    def setup(self) -> None:
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size + self.p.num_sentinels

    @property
    def sentinels(self) -> np.ndarray:
        """The ids of the sentinels in the order of their use, int32 [num_sentinels]."""
        return np.arange(self.tokenizer.vocab_size, self.vocab_size, dtype=np.int32)

    @property
    def pad_id(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The id of padding."""
        return self.tokenizer.pad_id

    @property
    def start_id(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The id before a document."""
        return self.tokenizer.start_id

    @property
    def end_id(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The id after a document."""
        return self.tokenizer.end_id

    def describe(self) -> str:
        return f"{self.tokenizer.describe()} and {self.p.num_sentinels} sentinels"

    def encode(self, text: str | bytes) -> np.ndarray:
        return self.tokenizer.encode(text)

    def encode_marked(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [number of tokens], with <extra_id_3> as a sentinel."""
        plain, *marked = re.split(r"<extra_id_(0|[1-9][0-9]{0,8})>", text)  # text, number, text...
        ids = [self.encode(plain)]
        for number, part in zip(marked[::2], marked[1::2], strict=True):
            is_there = int(number) < self.p.num_sentinels
            mark = self.sentinels[int(number)] if is_there else self.encode(f"<extra_id_{number}>")
            ids += [np.atleast_1d(mark), self.encode(part)]
        return np.concatenate(ids).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(ids, np.int64)
        first = self.tokenizer.vocab_size
        places = np.flatnonzero((ids >= first) & (ids < self.vocab_size)).tolist()
        begins, ends = [0, *(place + 1 for place in places)], [*places, len(ids)]
        parts = [self.tokenizer.decode(ids[a:b]) for a, b in zip(begins, ends, strict=True)]
        marks = [f"<extra_id_{ids[place] - first}>" for place in places]
        return "".join(text + mark for text, mark in zip(parts, [*marks, ""], strict=True))

    def measure(self, read: Read, size: int) -> Measured:
        return self.tokenizer.measure(read, size)

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.tokenizer.part(read, size, cuts, begin, end)
