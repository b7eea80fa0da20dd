"""The digest of a tensor's content, independent of how it was stored, stacked or split."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from lingo.checkpoints.checkpoint import Checkpoint

_PART_ELEMENTS = 32 << 20  # elements of the tensors read at a time


def digest(value: np.ndarray) -> str:
    """Returns the hexadecimal SHA-256 of dtype, shape and elements.

    Args:
        value: any shape, any numeric dtype.

    Returns:
        The digest of a line such as `float32[3, 4]` and the elements, little-endian, in C order.
    """
    line = f"{value.dtype.name}{list(value.shape)}\n".encode()
    elements = np.asarray(value, value.dtype.newbyteorder("<"), order="C")
    return hashlib.sha256(line + elements.tobytes()).hexdigest()


def digests(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yields (name, digest) of every tensor in a checkpoint.

    Raises:
        DamagedCheckpoint: if one cannot be read.
    """
    for names in _parts(checkpoint):
        for name, value in checkpoint.read(names).items():
            yield name, digest(value)


def _parts(checkpoint: Checkpoint) -> Iterator[list[str]]:
    """Yields lists of names of tensors that are read together."""
    names, gathered = [], 0
    for name, (shape, _) in checkpoint.tensors.items():
        size = math.prod(shape)
        if names and gathered + size > _PART_ELEMENTS:
            yield names
            names, gathered = [], 0
        names.append(name)
        gathered += size
    yield names
