"""The contract of a tokenizer, which turns text into token ids, and a tokenizer of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lingo.config.params import Configurable, ParamError
from lingo.data.files import DataError, Read


class TokenCounts(NamedTuple):
    """The number of tokens of a document, and where its text may be cut.

    A cut is (number of bytes, number of tokens) before it. `Tokenizer.encode_part` of the parts
    between cuts gives the tokens of the document.
    """

    tokens: int
    cuts: Sequence[tuple[int, int]] = ()


class Tokenizer(Configurable, interface=True):
    """Turns text into token ids and back; the number of ids is known without reading any data."""

    vocab_size: ClassVar[int]

    @property
    def pad_id(self) -> int:
        """The id of padding."""
        return 0

    @property
    def end_id(self) -> int:
        """The id after a document."""
        return 1

    @property
    def start_id(self) -> int:
        """The id before a document; from this id, the document's first token is predicted."""
        return 2

    def special_id(self, token: str) -> int | None:
        """Returns the id of a special token such as <extra_id_0>, or None if it does not exist."""
        del token
        return None

    def special_ids(self) -> np.ndarray:
        """Returns the ids that stand for no text, int32 [number of these ids], ascending."""
        return np.unique([self.pad_id, self.end_id, self.start_id]).astype(np.int32)

    def word_continuations(self) -> np.ndarray:
        """Returns whether ids continue a word, bool [vocab_size]; raises DataError if unknown."""
        raise DataError(
            f"tokenizer {self.describe()} does not tell which tokens continue a word: take"
            " LearnedWordPieces, or a HuggingFaceTokenizer of BERT's."
        )

    def describe(self) -> str:
        """Returns a name; tokenizers with equal names encode every text to the same ids."""
        raise NotImplementedError

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the ids of a text, int32 [number of tokens], without start and end."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids, [any number]; ids without text are left out, or give U+FFFD."""
        raise NotImplementedError

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> np.ndarray:
        """Returns the ids of a part of a document between two cuts, int32 [number of tokens]."""
        del is_first, is_last
        return self.encode(data)

    def measure(self, read: Read, size: int) -> TokenCounts:
        """Counts the tokens of a document of `size` bytes, and finds where it may be cut."""
        return TokenCounts(len(self.encode(read(0, size))))

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Returns tokens begin, ..., end - 1 of a document of `size` bytes, int32 [end - begin].

        `cuts`, int64 [number of cuts, 2], come from `measure`.
        """
        first = int(np.searchsorted(cuts[:, 1], begin, side="right"))  # the part that `begin` is in
        last = int(np.searchsorted(cuts[:, 1], end, side="left"))
        start, skipped = cuts[first - 1].tolist() if first else (0, 0)
        stop = int(cuts[last, 0]) if last < len(cuts) else size
        data, bounds = read(start, stop), [start, *cuts[first:last, 0].tolist(), stop]
        ids = [
            self.encode_part(data[a - start : b - start], is_first=a == 0, is_last=b == size)
            for a, b in itertools.pairwise(bounds)
        ]
        return np.concatenate(ids)[begin - skipped : end - skipped]


class ByteTokenizer(Tokenizer):
    """One token per byte: id = byte + 3, after ByT5 (Xue et al. 2021, sec. 3.1).

    ByT5's id 2 is for unknown tokens, which bytes do not need: here it is the start.
    """

    vocab_size = 259

    def describe(self) -> str:
        return "bytes"

    def encode(self, text: str | bytes) -> np.ndarray:
        return np.frombuffer(as_bytes(text), np.uint8).astype(np.int32) + 3

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        byte = np.asarray(ids, np.int64) - 3
        return byte[(byte >= 0) & (byte < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def measure(self, read: Read, size: int) -> TokenCounts:
        return TokenCounts(size)

    def part(self, read: Read, size: int, cuts: np.ndarray, begin: int, end: int) -> np.ndarray:
        return self.encode(read(begin, end))


class CharacterTokenizer(Tokenizer):
    """One token per character of a list; id = index in the list + 3.

    The default is the alphabet of English transcripts, which has 28 characters.
    """

    characters: str = " 'abcdefghijklmnopqrstuvwxyz"  # the characters that have tokens
    is_lower_case: bool = True  # whether texts become lower case first
    unknown: Literal["refuse", "leave_out"] = "refuse"  # what to do with other characters

    def check(self) -> None:
        characters = self.p.characters
        if not characters or len(set(characters)) < len(characters):
            raise ParamError(f"characters={characters!r} is empty, or has a character twice")

    @property
    def vocab_size(self) -> int:
        return len(self.p.characters) + 3

    def describe(self) -> str:
        case = "lower case, " if self.p.is_lower_case else ""
        return f"characters {self.p.characters!r} ({case}others: {self.p.unknown})"

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the ids, int32 [number of characters]; raises DataError for an unknown one."""
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        text = text.lower() if self.p.is_lower_case else text
        ids = [self.p.characters.find(character) for character in text]
        if -1 in ids and self.p.unknown == "refuse":
            raise DataError(
                f"{text!r:.60} has {text[ids.index(-1)]!r}, which is not in characters of"
                " CharacterTokenizer: add it, or set unknown=leave_out."
            )
        return np.array([i + 3 for i in ids if i >= 0], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        known = range(3, self.vocab_size)
        return "".join(self.p.characters[i - 3] for i in np.asarray(ids).tolist() if i in known)


def as_bytes(text: str | bytes) -> bytes:
    """Returns a text in UTF-8; surrogates that stand for undecodable bytes become these bytes."""
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text
