"""Lists the files that match a pattern, and reads files with checks.

Files are in a `Store`: on this machine, in a bucket, or on a web server. Nothing here asks which.

No file is left out silently: it is an error if a match is not a regular file, a directory cannot be
listed, or shards of a set are missing. Only directories that match a wildcard for any name, such as
`*`, are skipped. Nothing here waits, for example for a named pipe.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from io import BufferedReader
from typing import NamedTuple

from lingo.config.base import regular_file
from lingo.data.store import (
    FILE,
    FOLDER,
    DataError,
    Status,
    Store,
    Stores,
    is_address,
    is_folder_of,
    store_of,
)

Read = Callable[[int, int], bytes]
"""Reads bytes start, ..., stop - 1 of a file, or of a document."""

GZIP_MAGIC = b"\x1f\x8b\x08"
"""The first bytes of a gzip file (RFC 1952, sec. 2.3.1)."""

_COMPRESSED = {  # first bytes -> format, and the command that unpacks it
    GZIP_MAGIC: ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"BZh91AY&SY": ("bzip2", "bunzip2"),
    b"PK\x03\x04": ("zip", "unzip"),
}
_SHARD = re.compile(r"(.*?)(\d{5,6})-of-(\d{5,6})([^/]*)", re.DOTALL)
_ESCAPED = re.compile(r"\[([*?[])\]")  # a wildcard that means itself
_SHOWN = 3
_BLOCK_BYTES = 1 << 20


def blocks(read: Read, start: int, stop: int) -> Iterator[bytes]:
    """Yields bytes start, ..., stop - 1 in blocks of a megabyte."""
    for begin in range(start, stop, _BLOCK_BYTES):
        yield read(begin, min(begin + _BLOCK_BYTES, stop))


def short_path(path: str) -> str:
    """Returns a path for readers: relative to the working directory if it is below it."""
    short = path if is_address(path) else os.path.relpath(path)
    return path if short.startswith(os.pardir) else short


def absolute_path(path: str) -> str:
    """Returns a path that means the same in every working directory, for messages and digests."""
    return path if is_address(path) else os.path.abspath(path)


class Copy(NamedTuple):
    """The unpacked copy of a compressed file."""

    path: str
    compressed_size: int  # bytes of the compressed file


class File(NamedTuple):
    """A data source's file, as it was when listed; `read` unpacks a compressed file."""

    name: str  # path from the source's root, with "/", without ".gz": the same on every machine
    path: str  # path on this machine, or an address
    size: int  # bytes of the content, unpacked
    version: str  # as in `Status`
    copy: Copy | None = None  # the unpacked copy that is read instead of a compressed file

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes start, ..., stop - 1; raises DataError if the file changed since listed."""
        with self.open() as read:
            return read(start, stop)

    @contextlib.contextmanager
    def open(self) -> Iterator[Read]:
        """Opens the file once and yields its `read`; raises DataError as `File.read` does."""
        with self.open_stream() as file:

            def read(start: int, stop: int) -> bytes:
                file.seek(start)
                data = file.read(stop - start)
                if len(data) != stop - start:
                    raise DataError(
                        f"{self.path}: wanted bytes {start} to {stop}, got {len(data)} of them."
                    )
                return data

            yield read

    def digest(self) -> bytes:
        """Returns a SHA-256 of the content, or of the version if this tells the content.

        Raises DataError as `read` does.
        """
        if store_of(self.path).versions_tell_content:
            return hashlib.sha256(f"{self._status.size} {self.version}".encode()).digest()
        with self.open_stream() as file:
            return hashlib.file_digest(file, "sha256").digest()

    @contextlib.contextmanager
    def open_stream(self) -> Iterator[BufferedReader]:
        """Opens the content; checks before and after use that the file is as it was when listed."""
        with store_of(self.path).open(self.path, self._status) as file:
            if self.copy is None:
                yield file
            else:
                with self._open_copy(self.copy.path) as copy:
                    yield copy

    @contextlib.contextmanager
    def _open_copy(self, path: str) -> Iterator[BufferedReader]:
        try:
            copy = regular_file.open_regular(path)
        except OSError as error:
            raise DataError(
                f"{path}, a copy of the content of {self.path}, cannot be read: {error.strerror}."
                " Start again to make it anew."
            ) from None
        with copy:
            with contextlib.suppress(OSError):
                os.utime(copy.fileno())  # marks it as used: unused copies are deleted
            yield copy

    @property
    def _status(self) -> Status:
        size = self.size if self.copy is None else self.copy.compressed_size
        return Status(FILE, size, self.version)


class FilePattern(NamedTuple):
    """Where a data source's files are: a directory and a pattern below it."""

    root: str  # a directory
    pattern: str  # a glob below the directory
    prefix: str = ""  # put before the files' names, so that names differ between places


def open_file(path: str) -> AbstractContextManager[BufferedReader]:
    """Opens a file for reading; raises DataError if it cannot be read or is not a regular file."""
    return store_of(path).open(path)


# ---- listing -----------------------------------------------------------------------------------


def place_of(path: str) -> FilePattern:
    """Returns the place of a path or glob of the user's; its root ends before the first wildcard.

    `~` at the beginning is the home directory. At an address, a wildcard is one in any case.
    """
    whole = os.path.expanduser(path)
    if is_address(whole) and whole.count("/") == 2:  # a bucket or server alone
        whole += "/"
    is_name = not glob.has_magic(whole) if is_address(whole) else os.path.lexists(whole)
    if is_name:  # a local name may hold a bracket
        return FilePattern(os.path.dirname(whole) or ".", glob.escape(os.path.basename(whole)))
    root = whole
    while glob.has_magic(root) or root == whole:
        root = os.path.dirname(root)
    return FilePattern(root or ".", os.path.relpath(whole, root or "."))


def list_files(places: Sequence[FilePattern]) -> list[File]:
    """Returns the files that match the patterns of `places`, sorted by name.

    A directory that matches is skipped, unless a file was meant. A file was meant if the directory
    has the name of a shard, or if the pattern is a glob that ends in a file's name or extension.

    Raises:
        DataError: if any other match is not a readable regular file, a directory cannot be listed,
            a shard is missing, or a file is present both plain and compressed.
    """
    files, stores = [], Stores()
    for place in places:
        store = stores.of(place.root)
        names = _match_pattern(store, place)
        _check_shards(place, names)
        files += [file for name in names if (file := _file(store, place, name)) is not None]
    files.sort()
    for file, other in itertools.pairwise(files):
        if other.path == f"{file.path}.gz":
            raise DataError(
                f"{file.path} and {other.path} both match: are they the same? Leave one out of the"
                " pattern."
            )
    return files


def describe_place(place: FilePattern) -> str:
    """Returns a sentence that says what is at a place, for the error that no file matches."""
    path, store = os.path.join(place.root, place.pattern), store_of(place.root)
    if is_folder_of(store, path):
        return f"{path} is a directory: ask for {os.path.join(path, '**', '*')}"
    if not is_folder_of(store, place.root):
        return f"There is no directory {place.root}."
    names = _first_names(sorted(store.names(place.root)))
    return f"{absolute_path(place.root)} holds {names or 'nothing'}."


def _match_pattern(store: Store, place: FilePattern) -> list[str]:
    """Returns the paths below a place's root that match its pattern, each once.

    Unlike in `glob.glob`, `**` enters a directory only once, however many links lead to it.
    """
    parts = place.pattern.split(os.sep)
    parts = [p for i, p in enumerate(parts) if i == 0 or (p, parts[i - 1]) != ("**", "**")]
    return sorted(set(_match_parts(store, place.root, "", parts)))


def _match_parts(store: Store, root: str, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yields the paths in `folder`, relative to `root`, that match a pattern's parts."""
    head, *rest = parts
    if head == "**":
        if is_folder_of(store, os.path.join(root, folder)):
            for inner in store.folders(root, folder):
                yield from _match_parts(store, root, inner, rest or ["*"])
        return
    for name in _match_names(store, os.path.join(root, folder), head):
        path = os.path.join(folder, name)
        yield from _match_parts(store, root, path, rest) if rest else [path]


def _match_names(store: Store, folder: str, part: str) -> list[str]:
    """Returns the names in a folder that match a pattern's part between two slashes."""
    name = _ESCAPED.sub(r"\1", part)
    if glob.escape(name) in (part, name):  # it needs no right to list the folder
        return [name] if store.exists(os.path.join(folder, name)) else []
    if not is_folder_of(store, folder):
        return []
    names = fnmatch.filter(store.names(folder), part)
    return names if part.startswith(".") else [name for name in names if name[0] != "."]


def _file(store: Store, place: FilePattern, name: str) -> File | None:
    path = os.path.join(place.root, name)
    kind, size, version = store.status(path)
    if kind == FOLDER and not _is_in_place_of_file(place, name):
        return None
    if kind != FILE:
        raise DataError(f"{path} is {kind}, not a file: leave it out of the pattern.")
    name = place.prefix + name.replace(os.sep, "/").removesuffix(".gz")
    return File(name, path, size, version)


def _is_in_place_of_file(place: FilePattern, name: str) -> bool:
    """Returns whether a directory that matches a place's pattern has a name meant for a file."""
    last = os.path.basename(place.pattern)
    is_any_name = glob.has_magic(last) and os.path.splitext(last)[1] in ("", ".*")
    asks_for_files = glob.has_magic(place.pattern) and not is_any_name
    return asks_for_files or _SHARD.fullmatch(name) is not None


# ---- files that cannot be read -----------------------------------------------------------------


def refuse_compressed(file: File, read: Read) -> None:
    """Raises DataError if the content is compressed, as lingo unpacks only one layer of gzip."""
    start = read(0, min(file.size, max(map(len, _COMPRESSED))))
    for magic, (name, command) in _COMPRESSED.items():
        if start.startswith(magic):
            what = "is compressed twice, the second time" if file.copy else "is compressed"
            raise DataError(
                f"{file.path} {what} by {name}, but lingo unpacks only gzip, and only once: unpack"
                f" the file by {command}, then read the result."
            )


def refuse_empty(file: File) -> None:
    """Raises DataError for an empty file of records, which was probably not written to its end."""
    if not file.size:
        raise DataError(f"{file.path} is empty: write it again, or leave it out of the pattern.")


def _check_shards(place: FilePattern, names: Iterable[str]) -> None:
    """Raises DataError if shards (name-00002-of-00005) that match the pattern are missing."""
    matches_pattern = re.compile(fnmatch.translate(os.path.basename(place.pattern))).match
    sets: dict[tuple[str, str, str], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, names)):
        before, number, total, after = match.groups()
        sets.setdefault((before, total, after), set()).add(int(number))
    for (before, total, after), numbers in sets.items():
        first = 0 if 0 in numbers or int(total) not in numbers else 1  # some sets count from 1
        absent = (n for n in range(first, first + int(total)) if n not in numbers)
        absent_names = [f"{before}{n:0{len(total)}}-of-{total}{after}" for n in absent]
        missing = [name for name in absent_names if matches_pattern(os.path.basename(name))]
        if missing:
            raise DataError(
                f"{absolute_path(place.root)}: {len(missing)} of {int(total)} shards are missing:"
                f" {_first_names(missing)}. Put them back, or give a pattern that matches only the"
                " shards that are there."
            )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
