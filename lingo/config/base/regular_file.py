"""Reads files that anybody may have written: only regular files, and only up to a size.

Other kinds of files are refused: reading a pipe might never end, and reading a device might have
effects.
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
    """Returns words for messages, such as "a device", from the `st_mode` of an irregular file."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def open_regular(file: str | os.PathLike[str], *, links: bool = True) -> BufferedReader:
    """Opens a regular file for reading; raises OSError for any other file.

    `links` says whether the path may be a symbolic link.
    """
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
    """Returns at most `max_bytes` + 1 bytes of a file; the last one says that the file is larger.

    Raises OSError if the file is not regular or cannot be read.
    """
    with open_regular(file) as stream:
        return stream.read(max_bytes + 1)


def check(status: os.stat_result) -> None:
    """Raises OSError unless a status, from `os.stat`, is a regular file's."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind(status.st_mode)}, not a file")
