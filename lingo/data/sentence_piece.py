"""SentencePiece tokenizers (Kudo & Richardson 2018): a vocabulary of pieces, learned from text.

A document is encoded in blocks, cut before a newline or a space, so that a row in the middle of a
book reads and encodes a few kilobytes. A cut at a newline changes no token if no piece spans a
newline, as in the models that `sentence_piece_training` makes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lingo.config.errors import MissingPackage
from lingo.config.types import FilePath
from lingo.data.sources.files import DataError, Read, open_file
from lingo.data.tokenizer import TokenCounts, Tokenizer, as_bytes

_BLOCK_BYTES = 2048


class SentencePiece(Tokenizer):
    """A SentencePiece model file. `pip install 'lingo-tf[text]'`.

    The ids of padding, start and end are the model's; its end id replaces a padding or start id
    that it lacks.
    """

    model: FilePath  # path of the .model file
    vocab_size: int  # number of pieces in it; checked when it is opened

    def setup(self) -> None:
        self.vocab_size = self.p.vocab_size

    @property
    def pad_id(self) -> int:
        return self._or_end(self._model.processor.pad_id())

    @property
    def start_id(self) -> int:
        return self._or_end(self._model.processor.bos_id())

    @property
    def end_id(self) -> int:
        return self._model.processor.eos_id()

    def describe(self) -> str:
        return f"SentencePiece {self.vocab_size} sha256:{self._model.digest}"

    def encode(self, text: str | bytes) -> np.ndarray:
        data = as_bytes(text)
        ends = _block_ends(lambda a, b: data[a:b], len(data))
        ids = [self._ids(data[a:b]) for a, b in itertools.pairwise([0, *ends])]
        return np.array([i for block in ids for i in block], np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = {self.pad_id, self.start_id, self.end_id}
        pieces = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in special]
        return self._model.processor.decode(pieces)

    def measure(self, read: Read, size: int) -> TokenCounts:
        bytes_done = tokens = 0
        cuts = []
        for end in _block_ends(read, size):
            if bytes_done:
                cuts.append((bytes_done, tokens))
            tokens += len(self._ids(read(bytes_done, end)))
            bytes_done = end
        return TokenCounts(tokens, cuts)

    def _ids(self, block: bytes) -> list[int]:
        return self._model.processor.encode(block)

    def _or_end(self, token: int) -> int:
        return token if token >= 0 else self.end_id

    @functools.cached_property
    def _model(self) -> _Model:
        """The model, read and checked at first use."""
        path = os.path.expanduser(self.p.model)
        with open_file(path) as file:
            data = file.read()
        not_a_model = DataError(f"{path} is not a SentencePiece model.")
        if not data:  # the package would make an empty model
            raise not_a_model
        try:
            processor = package().SentencePieceProcessor(model_proto=data)
        except RuntimeError:
            raise not_a_model from None
        num_pieces = processor.vocab_size()
        if num_pieces != self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {path} has {num_pieces} pieces:"
                f" set vocab_size={num_pieces}."
            )
        if processor.eos_id() < 0:
            raise DataError(f"tokenizer {path} has no piece for the end of a text (eos).")
        return _Model(processor, hashlib.sha256(data).hexdigest())


class _Model(NamedTuple):
    processor: Any
    digest: str


def package() -> ModuleType:
    """Imports `sentencepiece`; raises MissingPackage if it is not installed."""
    try:
        return importlib.import_module("sentencepiece")
    except ImportError:
        raise MissingPackage(
            "SentencePiece needs a package that is not installed: pip install 'lingo-tf[text]'"
        ) from None


def _block_ends(read: Read, size: int) -> Iterator[int]:
    """Yields the ends of the blocks of a text of `size` bytes: a function of the text alone."""
    start = 0
    while size - start > _BLOCK_BYTES:
        start += _block_size(read(start, start + _BLOCK_BYTES))
        yield start
    if size:
        yield size


def _block_size(window: bytes) -> int:
    """Returns the size of a block: it ends before the window's last newline, space or character."""
    for separator in (b"\n", b" "):
        size = window.rfind(separator)
        if size > 0:
            return size
    size = len(window) - 1
    while size > len(window) - 4 and window[size] & 0xC0 == 0x80:  # inside a character
        size -= 1
    return size
