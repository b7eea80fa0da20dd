"""Pairs of texts: a source, and a target to predict from it.

As a document, a pair is its two texts with U+001E, ASCII's "record separator", between them. So the
code that reads, indexes, splits and checks documents also works for pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lingo.data.files import DataError, Read
from lingo.data.record_source import CorruptRecord, RecordSource
from lingo.data.tokenizer import ByteTokenizer, TokenCounts, Tokenizer, as_bytes

SEPARATOR = b"\x1e"

Part = Literal["pair", "source", "target"]
"""A part of a pair: all of it, or one side."""


class PairSource(RecordSource, interface=True):
    """A source whose documents are pairs: `text` returns the result of `pair`.

    The part `identified_by` decides a pair's split and whether it is unique. With `source` or
    `target`, pairs that share that side are in the same split.
    """

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "pair"
    identified_by: ClassVar[Part] = "pair"

    def identity(self, read: Read, size: int) -> Iterable[bytes]:
        if self.identified_by == "pair":
            return super().identity(read, size)
        source, _, target = read(0, size).partition(SEPARATOR)
        return [source if self.identified_by == "source" else target]


class Pair(NamedTuple):
    """The tokens of a pair."""

    source: np.ndarray  # int32 [number of source tokens], the model's input
    target: np.ndarray  # int32 [number of target tokens], to be predicted


def pair(source: str, target: str, where: str) -> bytes:
    """Returns a pair as a document, or b"", which indexing leaves out, if a side is empty.

    Lone surrogates become question marks. Raises CorruptRecord at `where` if a side has U+001E.
    """
    sides = [side.encode(errors="replace") for side in (source, target)]
    if any(SEPARATOR in side for side in sides):
        raise CorruptRecord(f"{where}: it has U+001E, which separates source and target.")
    return SEPARATOR.join(sides) if all(sides) else b""


class PairTokenizer(Tokenizer):
    """Encodes the two sides of a pair separately: source tokens, an end, target tokens.

    The only cut of a document is after this end, so `Index.cuts` has the length of every source.
    """

    tokenizer: Tokenizer = ByteTokenizer  # encodes each side

    def setup(self) -> None:
        self.tokenizer = self.p.tokenizer.build()

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def describe(self) -> str:
        return f"pairs of {self.tokenizer.describe()}"

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the ids of a pair or side, int32 [number of tokens]; U+001E becomes end_id."""
        first, *others = as_bytes(text).split(SEPARATOR)
        ids = [self.tokenizer.encode(first)]
        for other in others:
            ids += [np.array([self.tokenizer.end_id], np.int32), self.tokenizer.encode(other)]
        return np.concatenate(ids)

    def measure(self, read: Read, size: int) -> TokenCounts:
        text = read(0, size)
        if text.count(SEPARATOR) != 1:
            raise DataError(
                f"{text[:40]!r}...: a document of a PairSource has U+001E once, between source and"
                " target: make it by lingo.data.pairs.pair.pair."
            )
        target = text.index(SEPARATOR) + 1
        num_source = len(self.encode(text[:target]))
        num_target = len(self.encode(text[target:]))
        return TokenCounts(num_source + num_target, [(target, num_source)])
