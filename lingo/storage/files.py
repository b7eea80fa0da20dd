"""Crash-safe writing, whole and durable or not at all, and the lock of a directory's one writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
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
    """Returns the error for a write that failed with an OSError or TensorFlow's OpError."""
    needs = f", {needs_bytes:,} bytes needed" if needs_bytes else ""
    return StorageError(f"cannot write {path}: {describe_os_error(error)} ({_free(path)}{needs}).")


def describe_os_error(error: Exception) -> str:
    """Returns the reason of an OSError, or TensorFlow's OpError, in one line."""
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return _FILE.sub("", " ".join(_NODE.sub("", text).split()))


def _free(path: Path) -> str:
    """Returns, as text, the free space of the disk where a path is, or would be."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):  # it does not exist, or may not be read
            disk = os.statvfs(place)
            full = ", no inode is free" if disk.f_files and not disk.f_favail else ""
            return f"{disk.f_frsize * disk.f_bavail:,} bytes free{full}"
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

    Raises StorageError if it cannot be written; the old file stays.
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
    """Deletes temporary files that a killed process left; the caller holds the folder's lock."""
    for path in folder.glob(f"{_FRESH}*"):
        if not path.is_dir():
            with explain_write_errors(path):
                path.unlink(missing_ok=True)


def append(path: Path, data: bytes, *, start: bytes = b"") -> None:
    """Appends bytes to a file, which begins with `start` if it is new: all of them, or none.

    Raises StorageError if it cannot be written; the file is as it was.
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


# ---- the lock ------------------------------------------------------------------------------------


class DirectoryLocked(LingoError):
    """Another process writes into the directory."""

    exit_code: ClassVar[int] = 6


class Lock:
    """An exclusive `flock` on a file that names its holder.

    The system releases it when the process ends, however it ends. A forked child would keep the
    lock, so a child closes it at once.
    """

    def __init__(self, path: Path) -> None:
        """Does not take the lock yet, nor touch its file, which is at `path`."""
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises DirectoryLocked, naming the holder, if another process has it, and StorageError if
        the file cannot be written.
        """
        with explain_write_errors(self.path):
            while self._descriptor is None:
                self._try()
            os.register_at_fork(after_in_child=self._drop)
            since = time.strftime("%Y-%m-%d %H:%M:%S%z")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            try:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)
            except OSError:
                self.release(remove=True)
                raise

    def release(self, *, remove: bool = False) -> None:
        """Releases the lock; `remove` deletes its file."""
        if remove and not self.is_lost:
            self.path.unlink(missing_ok=True)
        self._drop()

    @property
    def is_lost(self) -> bool:
        """Whether the file of its lock was removed or replaced: others may lock a new one."""
        return self._descriptor is not None and not self._is_of(self._descriptor)

    def _try(self) -> None:
        # O_NOFOLLOW: a link may lead to another file, which would be overwritten.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_of(descriptor):
                self._descriptor, descriptor = descriptor, None
        except BlockingIOError:
            raise DirectoryLocked(self._who(descriptor)) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _is_of(self, descriptor: int) -> bool:
        """Returns whether the path is still this file: the last holder may have removed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _who(self, descriptor: int) -> str:
        text = os.pread(descriptor, 4096, 0).decode(errors="replace")
        try:
            holder = json.loads(text)
            who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        return f"{self.path.parent} is in use: {who}. Wait for it, or use another directory."

    def _drop(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
