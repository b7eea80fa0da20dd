"""SentencePiece tokenizers (Kudo & Richardson 2018): a vocabulary of pieces, learned from text.

The tokens of a document are those that the package gives to its whole text. So that a row in the
middle of a book reads and encodes a few kilobytes, `measure` cuts the document into parts, each of
which it has encoded alone to the same tokens.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lingo.config.types import FilePath
from lingo.data.piece_model import PieceModel
from lingo.data.sources.files import DataError, Read, open_file
from lingo.data.tokenizer import TokenCounts, Tokenizer, as_bytes

_PART_BYTES = 2048
_SEGMENT_BYTES = 2**23
"""The longest text that the package encodes at once: it needs up to a hundred times the memory."""


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
        segments = self._segments(lambda start, stop: data[start:stop], len(data))
        ids = [np.array(segment.ids, np.int32) for segment in segments]
        return np.concatenate([np.zeros(0, np.int32), *ids])

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> np.ndarray:
        return np.array(self._model.encode_part(data, is_first=is_first, is_last=is_last), np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = {self.pad_id, self.start_id, self.end_id}
        pieces = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in special]
        return self._model.processor.decode(pieces)

    def measure(self, read: Read, size: int) -> TokenCounts:
        bytes_done = tokens = 0
        cuts = []
        for segment in self._segments(read, size):
            cuts += [
                (bytes_done + num_bytes, tokens + num_tokens)
                for num_bytes, num_tokens in _find_cuts(self._model, segment)
            ]
            bytes_done, tokens = bytes_done + len(segment.data), tokens + len(segment.ids)
        return TokenCounts(tokens, cuts[1:])

    def _segments(self, read: Read, size: int) -> Iterator[_Segment]:
        """Yields a document in parts of at most `_SEGMENT_BYTES`."""
        start = 0
        while start < size:
            data = read(start, min(start + _SEGMENT_BYTES, size))
            if start + len(data) < size:
                data = data[: self._model.find_cut(data)]
            is_first, is_last = start == 0, start + len(data) == size
            ids = self._model.encode_part(data, is_first=is_first, is_last=is_last)
            yield _Segment(data, ids, is_first, is_last)
            start += len(data)

    def _or_end(self, token: int) -> int:
        return token if token >= 0 else self.end_id

    @functools.cached_property
    def _model(self) -> PieceModel:
        """The model, read and checked at first use."""
        path = os.path.expanduser(self.p.model)
        with open_file(path) as file:
            data = file.read()
        not_a_model = DataError(f"{path} is not a SentencePiece model.")
        if not data:  # the package would make an empty model
            raise not_a_model
        try:
            model = PieceModel(data)
        except RuntimeError:
            raise not_a_model from None
        num_pieces = model.processor.vocab_size()
        if num_pieces != self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}, but {path} has {num_pieces} pieces:"
                f" set vocab_size={num_pieces}."
            )
        if model.processor.eos_id() < 0:
            raise DataError(f"tokenizer {path} has no piece for the end of a text (eos).")
        return model


class _Segment(NamedTuple):
    """A part of a document that the package encodes at once."""

    data: bytes
    ids: list[int]
    is_first: bool
    is_last: bool


def _find_cuts(model: PieceModel, segment: _Segment) -> list[tuple[int, int]]:
    """Returns the (bytes, tokens) before each part of a segment, from (0, 0) on.

    Each part, encoded alone, has the tokens that it has in the segment. If it has others, a part
    twice as long is tried, so that the work is proportional to the text; from the cut before, if
    already the first token differs. (Where float32 sums of scores decide between two segmentations
    of a text that are equally good, a part may have others wherever it begins.)
    """
    data, ids, is_first, is_last = segment
    cuts = [(0, 0)]

    def encode(start: int, stop: int) -> list[int]:
        return model.encode_part(
            data[start:stop],
            is_first=is_first and start == 0,
            is_last=is_last and stop == len(data),
        )

    size, wrong = _PART_BYTES, 0
    while (start := cuts[-1][0]) + size < len(data):
        stop, tokens = start + model.find_cut(data[start : start + size]), cuts[-1][1]
        part = encode(start, stop)
        if stop > wrong and part == ids[tokens : tokens + len(part)]:
            cuts.append((stop, tokens + len(part)))
            size = _PART_BYTES
            continue
        if part[:1] != ids[tokens : tokens + 1] and len(cuts) > 1:
            wrong, _ = cuts.pop()
        size = 2 * max(size, stop - cuts[-1][0])
    while len(cuts) > 1 and encode(cuts[-1][0], len(data)) != ids[cuts[-1][1] :]:
        cuts.pop()
    return cuts
