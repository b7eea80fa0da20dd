"""Crash-safe writing: a file is written whole and durably, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from lingo.config.errors import LingoError

PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a name must look like before it becomes part of a path."""

_FRESH = ".tmp-"
_NODE = re.compile(r"\{\{.*?\}\}|\[Op:.*?\]")  # the graph node in TensorFlow's messages
_FILE = re.compile(r"^/.*?; ")  # and its temporary file


class StorageError(LingoError):
    """A file could not be written: the disk is full or read-only, or permission is missing."""

    exit_code: ClassVar[int] = 10


def storage_error(path: Path, error: Exception, *, needs_bytes: int = 0) -> StorageError:
    """Returns the error for a failed write; its message has the number of free bytes.

    Args:
        path: the file that could not be written.
        error: the cause: an OSError, or TensorFlow's OpError.
        needs_bytes: size of the file; 0 if it is small.
    """
    needs = f", {needs_bytes:,} bytes needed" if needs_bytes else ""
    return StorageError(f"cannot write {path}: {describe_os_error(error)} ({_free(path)}{needs}).")


def describe_os_error(error: Exception) -> str:
    """Returns the reason of an OSError, or TensorFlow's OpError, in one line."""
    said = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return _FILE.sub("", " ".join(_NODE.sub("", said).split()))


def _free(path: Path) -> str:
    """Returns, as text, the free space of the disk where a path is, or would be."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):  # it does not exist, or may not be read
            found = os.statvfs(place)
            full = ", no inode is free" if found.f_files and not found.f_favail else ""
            return f"{found.f_frsize * found.f_bavail:,} bytes free{full}"
    return "nothing is known of the disk"


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError inside into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Writes a text in UTF-8 by `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file atomically: also after a crash it has the old content or the new one.

    Raises:
        StorageError: if it cannot be written; the old file stays.
    """
    fresh = path.with_name(f"{_FRESH}{path.name}-{os.getpid()}")
    with explain_write_errors(path):
        try:
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                fresh.unlink(missing_ok=True)
            raise
        sync(path.parent)


def clear_leftovers(folder: Path) -> None:
    """Deletes temporary files that a killed process left; the caller holds the folder's lock.

    Raises:
        StorageError: if one cannot be deleted.
    """
    for path in folder.glob(f"{_FRESH}*"):
        if not path.is_dir():
            with explain_write_errors(path):
                path.unlink(missing_ok=True)


def append(path: Path, data: bytes, *, start: bytes = b"") -> None:
    """Appends bytes to a file: all of them or, if there is an error, none.

    Args:
        path: of the file, which is created if it does not exist.
        data: the bytes to append.
        start: bytes that a new file begins with.

    Raises:
        StorageError: if it cannot be written; the file is as it was.
    """
    with explain_write_errors(path), open(path, "ab", buffering=0) as file:
        end = file.tell()
        data = data if end else start + data
        try:
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            file.truncate(end)  # or the next append would follow half of this one
            raise


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a directory, are on the disk (`fsync`)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
