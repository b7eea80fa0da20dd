"""Writing that survives a crash: a file is there whole or not at all, and then stays."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from lingo.errors import LingoError

PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a name must look like before it becomes part of a path."""

_NODE = re.compile(r"\{\{.*?\}\}|\[Op:.*?\]")  # what TensorFlow's messages say about its graph


class StorageError(LingoError):
    """Something could not be written: the disk is full, read-only, or forbids it."""

    exit_code: ClassVar[int] = 10


def storage_error(path: Path, error: Exception, *, needs_bytes: int = 0) -> StorageError:
    """Returns the error for a failed write, with the bytes that are free.

    Args:
        path: what was to be written.
        error: what failed: an OSError, or TensorFlow's OpError.
        needs_bytes: size of what was to be written; 0 if it is small.
    """
    reason = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    reason = " ".join(_NODE.sub("", reason).split())
    needs = f", {needs_bytes:,} bytes needed" if needs_bytes else ""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    free = f"{shutil.disk_usage(there).free:,} bytes free{needs}"
    return StorageError(f"cannot write {path}: {reason} ({free}).")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError inside into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file: a reader, also after a crash, sees the old content or the new one.

    Raises:
        StorageError: if it cannot be written; the old file stays.
    """
    fresh = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with writing(path):
        try:
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file, or the list of names in a directory, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
