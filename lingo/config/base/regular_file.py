"""Reads files that anybody may have written: only regular files, and only up to a size.

A pipe might never end, a device might have effects, a directory is not a file: all are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def kind(mode: int) -> str:
    """Returns the kind of a file that is not a regular one, from its `st_mode`, for messages."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def open_regular(file: str | os.PathLike[str], *, links: bool = True) -> BufferedReader:
    """Opens a regular file, with `links` also through a symbolic link; raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        if not links:
            check(os.lstat(file))
        stream = os.fdopen(os.open(file, flags), "rb")
    except ValueError as error:  # a zero byte, or characters that no path can have
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        check(os.fstat(stream.fileno()))
    except OSError:
        stream.close()
        raise
    return stream


def read(file: str | os.PathLike[str], *, max_bytes: int) -> bytes:
    """Returns the content of a file; one byte more than `max_bytes` shows that it is larger."""
    with open_regular(file) as stream:
        return stream.read(max_bytes + 1)


def check(status: os.stat_result) -> None:
    """Raises OSError if a status is not a regular file's."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind(status.st_mode)}, not a file")
