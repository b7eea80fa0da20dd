"""Text as integers: what a model reads and predicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from lingo.config.params import Configurable
from lingo.data.sources.files import Read


class Measured(NamedTuple):
    """The tokens of a document, counted.

    Attributes:
        tokens: how many.
        cuts: (bytes, tokens) before each place inside where the text may be cut: the tokens of the
            document are those of its parts, encoded alone.
    """

    tokens: int
    cuts: Sequence[tuple[int, int]] = ()


class Tokenizer(Configurable, kind=True):
    """Turns text into token ids and back.

    Attributes:
        vocab_size: number of ids; known without reading any data.
        pad_id: fills what holds no token.
        end_id: follows a document.
        start_id: stands before a document: the input from which its first token is predicted.
    """

    vocab_size: ClassVar[int]
    pad_id: ClassVar[int] = 0
    end_id: ClassVar[int] = 1
    start_id: ClassVar[int] = 2

    def describe(self) -> str:
        """Returns a name; tokenizers of one name encode alike."""
        raise NotImplementedError

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the ids of a text, int32 [N], without start and end; a str is taken as UTF-8."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids [N]; what is no text is left out or becomes U+FFFD."""
        raise NotImplementedError

    def measure(self, read: Read, size: int) -> Measured:
        """Counts the tokens of a document of `size` bytes."""
        return Measured(len(self.encode(read(0, size))))

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Returns tokens begin, ..., end - 1 of a document of `size` bytes, int32 [end - begin].

        Args:
            read: reads the document.
            size: in bytes.
            cuts: int64 [K, 2], those of `measure`.
            begin: of the document's tokens.
            end: likewise.
        """
        first = int(np.searchsorted(cuts[:, 1], begin, side="right"))  # the part that `begin` is in
        last = int(np.searchsorted(cuts[:, 1], end, side="left"))
        start, skipped = cuts[first - 1].tolist() if first else (0, 0)
        stop = int(cuts[last, 0]) if last < len(cuts) else size
        data, places = read(start, stop), [start, *cuts[first:last, 0].tolist(), stop]
        ids = [self.encode(data[a - start : b - start]) for a, b in itertools.pairwise(places)]
        return np.concatenate(ids)[begin - skipped : end - skipped]


class ByteTokenizer(Tokenizer):
    """A token a byte: id = byte + 3, after ByT5 (Xue et al. 2021, sec. 3.1).

    ByT5's id 2 stands for unknown tokens, which bytes do not need: here it is the start.
    """

    vocab_size = 259

    def describe(self) -> str:
        return "bytes"

    def encode(self, text: str | bytes) -> np.ndarray:
        return np.frombuffer(as_bytes(text), np.uint8).astype(np.int32) + 3

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        byte = np.asarray(ids, np.int64) - 3
        return byte[(byte >= 0) & (byte < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def measure(self, read: Read, size: int) -> Measured:
        return Measured(size)

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.encode(read(begin, end))


def as_bytes(text: str | bytes) -> bytes:
    """Returns a text in UTF-8; bytes that are none reach a program's flags as surrogates."""
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text
