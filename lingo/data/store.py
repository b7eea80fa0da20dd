"""Where files of data are: on this machine, in buckets, or on web servers.

A path belongs to `LocalStore`. An address, such as s3://bucket/a.jsonl, belongs to `RemoteStore`
(`remote_store.py`). Whoever lists and reads files does so by the few methods of a `Store`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import BufferedReader
from typing import ClassVar, NamedTuple, Protocol

from lingo.config.base import regular_file
from lingo.config.base.errors import LingoError

FILE, FOLDER = "a file", "a directory"
"""Kinds of what is at a path."""

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # no such path; ELOOP: a link to itself


def is_address(path: str) -> bool:
    """Returns whether a path is an address, such as s3://bucket/a.jsonl."""
    return "://" in path


class DataError(LingoError, ValueError):
    """Data is missing, damaged or changed; the message names it."""

    exit_code: ClassVar[int] = 5


class MissingFile(DataError):
    """Nothing is at a path."""


class Status(NamedTuple):
    """What is at a path; other contents have another size or version."""

    kind: str  # FILE, FOLDER, or in words what else
    size: int  # bytes
    version: str  # of a local file, its time of modification in ns since 1970; else its ETag


class Store(Protocol):
    """Where files are. It may remember what it has listed, so one object serves one listing.

    All methods raise DataError if files cannot be listed or read.
    """

    versions_tell_content: ClassVar[bool]
    """Whether equal sizes and versions mean equal contents, so that none is read to compare them"""

    def status(self, path: str) -> Status:
        """Returns what is at a path, following links; raises MissingFile if nothing is there."""
        ...

    def exists(self, path: str) -> bool:
        """Returns whether a path has a name in its folder; links that lead nowhere have one."""
        ...

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder, in any order."""
        ...

    def folders(self, root: str, top: str) -> Iterator[str]:
        """Yields the folder `top` below `root` and all below it, each once; not hidden ones."""
        ...

    def open(
        self, path: str, status: Status | None = None
    ) -> AbstractContextManager[BufferedReader]:
        """Opens a file. With a status, raises DataError if the file has changed since then."""
        ...


class LocalStore:
    """The files of this machine."""

    versions_tell_content: ClassVar[bool] = False

    def status(self, path: str) -> Status:
        """Returns what is at a path."""
        with _explain_errors(path):
            status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            return Status(FILE, status.st_size, str(status.st_mtime_ns))
        return Status(regular_file.kind(status.st_mode), status.st_size, str(status.st_mtime_ns))

    def exists(self, path: str) -> bool:
        """Returns whether a path has a name in its folder; hides no error as `lexists` does."""
        return _stat(path, follow_symlinks=False) is not None

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder."""
        return [entry.name for entry in _entries(folder)]

    def folders(self, root: str, top: str) -> Iterator[str]:
        """Yields a directory and all below it, if possible by a path without symlinks."""
        seen: set[tuple[int, int]] = set()
        plain, links = [top], []
        while plain or links:
            folder = plain.pop() if plain else links.pop()
            path = os.path.join(root, folder)
            status = _stat(path)
            if status is None or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            yield folder
            for entry in sorted(_entries(path), key=lambda entry: entry.name, reverse=True):
                if entry.name[0] == ".":
                    continue
                if entry.is_symlink():
                    if is_folder_of(self, entry.path):
                        links.append(os.path.join(folder, entry.name))
                    continue
                with _explain_errors(entry.path):
                    is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    plain.append(os.path.join(folder, entry.name))

    @contextlib.contextmanager
    def open(self, path: str, status: Status | None = None) -> Iterator[BufferedReader]:
        """Opens a regular file; compares its status before and after use."""
        try:
            with regular_file.open_regular(path) as file:
                _check(path, file, status)
                yield file
                _check(path, file, status)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def _check(path: str, file: BufferedReader, status: Status | None) -> None:
    if status is not None:
        now = os.fstat(file.fileno())
        if (now.st_size, str(now.st_mtime_ns)) != (status.size, status.version):
            raise DataError(f"{path} has changed since this run listed its documents.")


def _stat(path: str, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Returns the status of a path, None if nothing is there; hides no error as `isdir` does."""
    try:
        with _explain_errors(path):
            return os.stat(path, follow_symlinks=follow_symlinks)
    except MissingFile:
        return None


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror}.") from error


@contextlib.contextmanager
def _explain_errors(path: str) -> Iterator[None]:
    """Turns errors about a path into DataError."""
    try:
        yield
    except OSError as error:
        kind = MissingFile if error.errno in _NOTHING else DataError
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a zero byte, or characters that no path can have
        raise DataError(f"{path!r} cannot be read: {error}.") from error


def store_of(path: str) -> Store:
    """Returns the store that has a path."""
    if not is_address(path):
        return _LOCAL
    from lingo.data.remote_store import RemoteStore

    return RemoteStore()


class Stores:
    """The stores of paths. One object serves one listing, in which a folder is listed once."""

    def __init__(self) -> None:
        self._stores: dict[bool, Store] = {}

    def of(self, path: str) -> Store:
        """Returns the store that has a path."""
        key = is_address(path)
        if key not in self._stores:
            self._stores[key] = store_of(path)
        return self._stores[key]


def is_folder(path: str) -> bool:
    """Returns whether a directory is at a path or address; raises DataError if it is not known."""
    return is_folder_of(store_of(path), path)


def is_folder_of(store: Store, path: str) -> bool:
    """Returns whether a directory is at a path of a store."""
    try:
        return store.status(path).kind == FOLDER
    except MissingFile:
        return False


_LOCAL = LocalStore()
