"""Sources of initial weights: named tensors in files, whichever program wrote them."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from lingo.config.base.errors import LingoError

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types that weights are read from; numbers of other types would need a scale."""

_SHOWN_CHARACTERS = 120


class UnusableSource(LingoError):
    """A file that weights should be read from is missing, unreadable or damaged."""

    exit_code: ClassVar[int] = 3


class Tensor(NamedTuple):
    """Shape and dtype of a tensor, known before it is read."""

    shape: tuple[int, ...]
    dtype: str  # "float32", "bfloat16", ...


class WeightSource(Protocol):
    """Named tensors. Opening a source reads their shapes and dtypes; `read` reads one tensor."""

    @property
    def path(self) -> Path:
        """The file, the directory, or the prefix of the files."""
        ...

    @property
    def what(self) -> str:
        """The kind of source, as messages name it."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The shape and dtype of every tensor that can be read, by name."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Returns a whole tensor in the shape and dtype of `tensors[name]`, a dtype in `FLOATS`.

        Raises UnusableSource or DamagedCheckpoint if bytes are missing or have changed.
        """
        ...

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns the files that determine the content of the named tensors."""
        ...


@contextlib.contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turns an OSError in the body into an UnusableSource about `path`."""
    try:
        yield
    except OSError as error:
        raise UnusableSource(f"{path} cannot be read: {error.strerror or error}.") from error


def corrupt_source(path: Path, reason: str) -> UnusableSource:
    """Returns the error for a file that breaks its format."""
    return UnusableSource(f"{path} is damaged: {reason}.")


def read_small_file(path: Path, *, max_bytes: int) -> bytes:
    """Returns a file's content; raises UnusableSource if it is larger or not a regular file."""
    size = file_size(path)
    if size > max_bytes:
        raise corrupt_source(path, f"it has {size:,} bytes, more than the {max_bytes:,} allowed")
    with explain_read_errors(path), open(path, "rb") as file:
        return file.read(max_bytes)


def file_size(path: Path) -> int:
    """Returns the size in bytes of a regular file; raises UnusableSource for anything else.

    The file is not opened, because opening a pipe might block for ever.
    """
    with explain_read_errors(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnusableSource(f"{path} is not a regular file.")
    return status.st_size


def printable(name: str) -> str:
    """Returns a tensor's name for a message: one line, truncated, without control characters."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
