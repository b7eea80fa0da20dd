"""Writing that survives a crash: a file is there whole or not at all, and then stays."""

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
_NODE = re.compile(r"\{\{.*?\}\}|\[Op:.*?\]")  # what TensorFlow's messages say about its graph
_FILE = re.compile(r"^/.*?; ")  # and about its temporary file


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
    needs = f", {needs_bytes:,} bytes needed" if needs_bytes else ""
    return StorageError(f"cannot write {path}: {describe_os_error(error)} ({_free(path)}{needs}).")


def describe_os_error(error: Exception) -> str:
    """Returns what an OSError, or TensorFlow's OpError, says went wrong, in one line."""
    said = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return _FILE.sub("", " ".join(_NODE.sub("", said).split()))


def _free(path: Path) -> str:
    """Returns in words what is free where a path is, or would be."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):  # it is not there, or not ours to ask about
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
    """Writes a text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file: a reader, also after a crash, sees the old content or the new one.

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
            with contextlib.suppress(OSError):  # what went wrong first is what to tell
                fresh.unlink(missing_ok=True)
            raise
        sync(path.parent)


def clear_leftovers(folder: Path) -> None:
    """Deletes what `write_bytes` left in a folder when its process was killed; needs its lock.

    Raises:
        StorageError: if it cannot be deleted.
    """
    for path in folder.glob(f"{_FRESH}*"):
        if not path.is_dir():
            with explain_write_errors(path):
                path.unlink(missing_ok=True)


def append(path: Path, data: bytes, *, start: bytes = b"") -> None:
    """Adds bytes to the end of a file, all of them or, if there is an error, none.

    Args:
        path: of the file; made if it is not there.
        data: what is added.
        start: what a new file begins with.

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
            file.truncate(end)  # or what comes next would go on in the middle of this
            raise


def sync(path: Path) -> None:
    """Waits until a file, or the list of names in a directory, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
