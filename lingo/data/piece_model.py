"""A SentencePiece model file, which encodes a text as a whole or in parts.

The package adds a space before the first word of a text (or after the last, in some models), and
some models remove spaces at both ends. A part in the middle of a text needs neither, so that a
second processor of the same model adds no space where the first does, and the other way round.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import re
from collections.abc import Iterator
from types import ModuleType

from lingo.config.base.errors import MissingPackage

_WORD_END = re.compile(rb".*\S(?=\s)", re.DOTALL)
_SPACE_END = re.compile(rb".*\s(?=\S)", re.DOTALL)
_SPACES = (b" ", b"\n", b"\t")
_MAX_TRIED_CHARACTERS = 256
_TEXT_TYPES = (1, 4, 5)  # normal, user-defined, unused: the others are control symbols and bytes


class PieceModel:
    """A SentencePiece model.

    Attributes:
        processor: the package's `SentencePieceProcessor`.
        digest: SHA-256 of the file.
    """

    def __init__(self, data: bytes) -> None:
        """Opens a model from the content of its file; raises RuntimeError if it is not a model."""
        self.processor = package().SentencePieceProcessor(model_proto=data)
        self.digest = hashlib.sha256(data).hexdigest()
        proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
        proto.ParseFromString(data)
        self._space_is_last = proto.trainer_spec.treat_whitespace_as_suffix
        self._removes_spaces = proto.normalizer_spec.remove_extra_whitespaces
        self._adds_space = proto.normalizer_spec.add_dummy_prefix
        proto.normalizer_spec.add_dummy_prefix = not self._adds_space
        self._other = package().SentencePieceProcessor(model_proto=proto.SerializeToString())
        self._pieces = [piece.piece for piece in proto.pieces if piece.type in _TEXT_TYPES]

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> list[int]:
        """Returns the ids of a part of a text that was cut at `find_cut`."""
        has_outer_edge = is_last if self._space_is_last else is_first
        if has_outer_edge:  # the package adds a space there, or does not, as for the whole text
            return self.processor.encode(data)
        edge = data[-1:] if self._space_is_last else data[:1]
        # the model would remove the space at the edge, which one that is added stands for
        needs_space = self._removes_spaces and edge in self._spaces
        processor = self.processor if needs_space == self._adds_space else self._other
        return processor.encode(data)

    def find_cut(self, window: bytes) -> int:
        """Returns where a text that begins with a window may be cut, in bytes after its beginning.

        It is the last place where a word ends or, if there is none, no piece of the model joins the
        characters on both sides; else the last place between two characters.
        """
        match = (_SPACE_END if self._space_is_last else _WORD_END).match(window)
        if match:
            return match.end()
        starts = list(itertools.islice(_character_starts(window), _MAX_TRIED_CHARACTERS))
        bounds = [len(window), *starts]
        for right, cut, left in zip(bounds, bounds[1:], bounds[2:], strict=False):
            if window[left:right].decode(errors="replace") not in self._pairs:
                return cut
        return starts[0] if starts else len(window)

    @functools.cached_property
    def _spaces(self) -> set[bytes]:
        """The characters that the model takes for a space."""
        normalize = self.processor.normalize
        return {c for c in _SPACES if normalize(f"a{c.decode()}a") == normalize("a a")}

    @functools.cached_property
    def _pairs(self) -> set[str]:
        """All neighbouring characters in pieces of the model."""
        return {a + b for piece in self._pieces for a, b in itertools.pairwise(piece)}


def _character_starts(window: bytes) -> Iterator[int]:
    """Yields where characters start, from the last to the second."""
    return (i for i in range(len(window) - 1, 0, -1) if window[i] & 0xC0 != 0x80)


def package() -> ModuleType:
    """Imports `sentencepiece`; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("sentencepiece")
    except ImportError:
        raise MissingPackage(
            "SentencePiece needs a package that is not installed: pip install 'lingo-tf[text]'"
        ) from None
