"""Tokenizers whose ids depend on the surrounding text, and cuts that do not change the ids.

A document has the tokens of its whole text. A row in the middle of a book should still read and
encode only a few kilobytes. So `measure` cuts the document into parts, and checks that each part,
encoded alone, has the same tokens as in the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from lingo.data.files import Read
from lingo.data.tokenizer import TokenCounts, Tokenizer, as_bytes

PART_BYTES = 2048


class PartModel(Protocol):
    """Encodes a text, whole or in parts."""

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> list[int]:
        """Returns the ids of a part of a text that was cut at `find_cut`."""
        ...

    def find_cut(self, window: bytes) -> int:
        """Returns where a text that begins with `window` may be cut, in bytes after its start."""
        ...


class PartTokenizer(Tokenizer, interface=True):
    """A tokenizer that encodes parts of a document to the tokens of the whole."""

    segment_bytes: ClassVar[int]
    """The most bytes of text that are encoded at once."""

    @property
    def _model(self) -> PartModel:
        raise NotImplementedError

    def encode(self, text: str | bytes) -> np.ndarray:
        data = as_bytes(text)
        segments = self._segments(lambda start, stop: data[start:stop], len(data))
        ids = [np.array(segment.ids, np.int32) for segment in segments]
        return np.concatenate([np.zeros(0, np.int32), *ids])

    def encode_part(self, data: bytes, *, is_first: bool, is_last: bool) -> np.ndarray:
        return np.array(self._model.encode_part(data, is_first=is_first, is_last=is_last), np.int32)

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
        """Yields a document in parts of at most `segment_bytes`."""
        start = 0
        while start < size:
            data = read(start, min(start + self.segment_bytes, size))
            if start + len(data) < size:
                data = data[: self._model.find_cut(data)]
            is_first, is_last = start == 0, start + len(data) == size
            ids = self._model.encode_part(data, is_first=is_first, is_last=is_last)
            yield _Segment(data, ids, is_first, is_last)
            start += len(data)


class _Segment(NamedTuple):
    """A part of a document that is encoded at once."""

    data: bytes
    ids: list[int]
    is_first: bool
    is_last: bool


def _find_cuts(model: PartModel, segment: _Segment) -> list[tuple[int, int]]:
    """Returns the (bytes, tokens) before each part of a segment, from (0, 0) on.

    Each part, encoded alone, has the same tokens as in the segment. If the tokens differ, a part
    twice as long is tried, so that the work is proportional to the text. If even the first token
    differs, the part starts at the previous cut. (Rounding of float32 sums of scores may
    decide between two equally good segmentations, so that tokens differ wherever a part begins.)
    """
    data, ids, is_first, is_last = segment
    cuts = [(0, 0)]

    def encode(start: int, stop: int) -> list[int]:
        return model.encode_part(
            data[start:stop],
            is_first=is_first and start == 0,
            is_last=is_last and stop == len(data),
        )

    size, wrong = PART_BYTES, 0
    while (start := cuts[-1][0]) + size < len(data):
        stop, tokens = start + model.find_cut(data[start : start + size]), cuts[-1][1]
        part = encode(start, stop)
        if stop > wrong and part == ids[tokens : tokens + len(part)]:
            cuts.append((stop, tokens + len(part)))
            size = PART_BYTES
            continue
        if part[:1] != ids[tokens : tokens + 1] and len(cuts) > 1:
            wrong, _ = cuts.pop()
        size = 2 * max(size, stop - cuts[-1][0])
    while len(cuts) > 1 and encode(cuts[-1][0], len(data)) != ids[cuts[-1][1] :]:
        cuts.pop()
    return cuts
