"""Text as integers: what a model reads and predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from lingo.config.params import Configurable

Read = Callable[[int, int], bytes]
"""Returns bytes start, ..., stop - 1 of a document."""


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

    def count(self, read: Read, size: int) -> int:
        """Returns the number of tokens of a document of `size` bytes."""
        return len(self.encode(read(0, size)))

    def part(self, read: Read, size: int, begin: int, end: int) -> np.ndarray:
        """Returns tokens begin, ..., end - 1 of a document of `size` bytes, int32 [end - begin]."""
        return self.encode(read(0, size))[begin:end]


class ByteTokenizer(Tokenizer):
    """A token a byte: id = byte + 3, after ByT5 (Xue et al. 2021, sec. 3.1).

    ByT5's id 2 stands for unknown tokens, which bytes do not need: here it is the start.
    """

    vocab_size = 259

    def describe(self) -> str:
        return "bytes"

    def encode(self, text: str | bytes) -> np.ndarray:
        # surrogates are how Python's command line hands over bytes that are no UTF-8
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int32) + 3

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        byte = np.asarray(ids, np.int64) - 3
        return byte[(byte >= 0) & (byte < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def count(self, read: Read, size: int) -> int:
        return size

    def part(self, read: Read, size: int, begin: int, end: int) -> np.ndarray:
        return self.encode(read(begin, end))
