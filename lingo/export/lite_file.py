"""Writes a model of TensorFlow Lite in which equal vectors are stored once.

A weight of 8 bits has a scale for each output, and a zero point of 64 bits for each, which is 0: in
a small network these are a twelfth of what the converter writes.
"""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np

_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # bytes; LiteRT reads the constants of a file where they are


class _SharingBuilder(flatbuffers.Builder):
    """A builder that stores equal vectors once."""

    def __init__(self) -> None:
        super().__init__(0)
        self._places: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        key = (x.dtype.str, x.tobytes())
        if key not in self._places:
            self._places[key] = super().CreateNumpyVector(x)
        return self._places[key]

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:
        """Starts a vector; bytes are aligned, since those of a constant may be of any type."""
        return super().StartVector(elemSize, numElems, _ALIGNMENT if elemSize == 1 else alignment)


def write_model(model: Any) -> bytes:
    """Returns the content of a file with a model, a `ModelT` of TensorFlow Lite's schema."""
    builder = _SharingBuilder()
    builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())
