"""Pairs of texts: one that is given, and one that is to be predicted from it.

As a document, a pair is its two texts with U+001E, ASCII's "record separator", between them: what
reads, indexes, splits and checks documents serves pairs, too.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lingo.data.source import CorruptRecord, Source
from lingo.data.sources.files import DataError, Read
from lingo.data.tokenizer import ByteTokenizer, Measured, Tokenizer, as_bytes

SEPARATOR = b"\x1e"

Part = Literal["pair", "source", "target"]
"""Of a pair: all of it, or one side."""


class PairSource(Source, kind=True):
    """A source whose documents are pairs: their texts are made by `pair`.

    Attributes:
        identified_by: what of a pair its split goes by, and `unique`. By `source` or `target`, no
            two pairs of one such side are in different splits.
    """

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "pair"
    identified_by: ClassVar[Part] = "pair"

    def identity(self, read: Read, size: int) -> tuple[int, int]:
        if self.identified_by == "pair":
            return 0, size
        between = read(0, size).index(SEPARATOR)
        return (0, between) if self.identified_by == "source" else (between + 1, size)


class Pair(NamedTuple):
    """The tokens of a pair.

    Attributes:
        source: int32 [N], what is given.
        target: int32 [M], what is to be predicted.
    """

    source: np.ndarray
    target: np.ndarray


def pair(source: str, target: str, where: str) -> bytes:
    """Returns a pair as a document; nothing, which is left out, if one of its sides is empty.

    Args:
        source: what is given; half a surrogate pair in it becomes a question mark.
        target: what is to be predicted.
        where: begins the message if a side holds U+001E.

    Raises:
        DamagedRecord: if it does.
    """
    sides = [side.encode(errors="replace") for side in (source, target)]
    if any(SEPARATOR in side for side in sides):
        raise CorruptRecord(f"{where}: it holds U+001E, which stands between source and target.")
    return SEPARATOR.join(sides) if all(sides) else b""


class PairTokenizer(Tokenizer):
    """Encodes the two sides of a pair apart: the source's tokens, an end, the target's tokens.

    The place behind that end is the only cut of a document, so `Index.cuts` has the length of every
    source. Inputs put this around their tokenizer; nobody else needs it.
    """

    tokenizer: Tokenizer = ByteTokenizer  # what encodes each side

    def setup(self) -> None:
        self.tokenizer = self.p.tokenizer.build()
        self.vocab_size = self.tokenizer.vocab_size

    def describe(self) -> str:
        return f"pairs of {self.tokenizer.describe()}"

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the ids of a pair, or of one side of it, int32 [N]; U+001E becomes an end."""
        first, *others = as_bytes(text).split(SEPARATOR)
        ids = [self.tokenizer.encode(first)]
        for other in others:
            ids += [np.array([self.tokenizer.end_id], np.int32), self.tokenizer.encode(other)]
        return np.concatenate(ids)

    def measure(self, read: Read, size: int) -> Measured:
        """Counts the tokens of a pair of `size` bytes.

        Raises:
            DataError: if it is none.
        """
        text = read(0, size)
        if text.count(SEPARATOR) != 1:
            raise DataError(
                f"{text[:40]!r}...: a document of a PairSource has U+001E once, between source and"
                " target: make it by lingo.data.pairs.pair.pair."
            )
        behind = text.index(SEPARATOR) + 1
        given = len(self.encode(text[:behind]))
        return Measured(given + len(self.encode(text[behind:])), [(behind, given)])
