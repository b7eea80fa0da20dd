"""A lock that lets one process write into a directory; it is released when that process ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import ClassVar

from lingo.config.errors import LingoError
from lingo.storage.files import explain_write_errors


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

        Raises:
            DirectoryLocked: if another process has it; the message names that process.
            StorageError: if the file cannot be written.
        """
        with explain_write_errors(self.path):
            while self._descriptor is None:
                self._try()
            os.register_at_fork(after_in_child=self._drop)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
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
        """Whether the file of a held lock was removed or replaced: others may lock a new one."""
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


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
