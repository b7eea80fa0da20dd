"""Where first weights can come from: named tensors in files, whoever wrote them."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from lingo.config.errors import LingoError

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types that weights are read from; numbers of other types need a scale that nobody names here."""

_SHOWN_CHARACTERS = 120


class UnusableSource(LingoError):
    """A file that weights should be read from is missing, unreadable or damaged."""

    exit_code: ClassVar[int] = 3


class Tensor(NamedTuple):
    """What is known of a tensor before it is read.

    Attributes:
        shape: of all of it.
        dtype: "float32", "bfloat16", ...
    """

    shape: tuple[int, ...]
    dtype: str


class Source(Protocol):
    """Named tensors. Opening one reads what describes them, `read` one of them."""

    @property
    def path(self) -> Path:
        """The file, the directory, or the prefix of the files."""
        ...

    @property
    def what(self) -> str:
        """What it is, in words."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor that can be asked for, by name."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor of one of the types in `FLOATS`.

        Raises:
            UnusableSource, DamagedCheckpoint: if its bytes are not there, or not what was written.
        """
        ...

    def files(self, names: Collection[str]) -> list[Path]:
        """Returns the files whose contents decide what some tensors are."""
        ...


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an OSError inside into an UnusableSource about `path`."""
    try:
        yield
    except OSError as error:
        raise UnusableSource(f"{path} cannot be read: {error.strerror or error}.") from error


def corrupt_source(path: Path, reason: str) -> UnusableSource:
    """Returns the error for a file that is not what its format says."""
    return UnusableSource(f"{path} is damaged: {reason}.")


def read_small_file(path: Path, *, max_bytes: int) -> bytes:
    """Returns the content of a small file.

    Raises:
        UnusableSource: if there is none, it is too large, or no plain file.
    """
    size = file_size(path)
    if size > max_bytes:
        raise corrupt_source(path, f"it has {size:,} bytes, and such a file at most {max_bytes:,}")
    with reading(path), open(path, "rb") as file:
        return file.read(max_bytes)


def file_size(path: Path) -> int:
    """Returns the size in bytes of a regular file; opening a pipe or a device might never return.

    Raises:
        UnusableSource: if there is none.
    """
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnusableSource(f"{path} is no plain file.")
    return status.st_size


def shown(name: str) -> str:
    """Returns a tensor's name for a message: in one line, not too long, without control codes."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
