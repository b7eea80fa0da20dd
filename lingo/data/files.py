"""Lists the files on disk that match a pattern, and reads files with checks.

No file is left out silently: it is an error if a match is not a regular file, a directory cannot be
listed, or shards of a set are missing. Only directories that match a wildcard for any name, such as
`*`, are skipped. Nothing here waits, for example for a named pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from typing import ClassVar, NamedTuple

from lingo.config.base import regular_file
from lingo.config.base.errors import LingoError

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
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # no such path; ELOOP: a link to itself
_SHARD = re.compile(r"(.*?)(\d{5,6})-of-(\d{5,6})([^/]*)", re.DOTALL)
_SHOWN = 3
_BLOCK_BYTES = 1 << 20


def blocks(read: Read, start: int, stop: int) -> Iterator[bytes]:
    """Yields bytes start, ..., stop - 1 in blocks of a megabyte."""
    for begin in range(start, stop, _BLOCK_BYTES):
        yield read(begin, min(begin + _BLOCK_BYTES, stop))


def short_path(path: str) -> str:
    """Returns a path for readers: relative to the working directory if it is below it."""
    short = os.path.relpath(path)
    return path if short.startswith(os.pardir) else short


class DataError(LingoError, ValueError):
    """Data is missing, damaged or changed; the message names it."""

    exit_code: ClassVar[int] = 5


class Copy(NamedTuple):
    """The unpacked copy of a compressed file."""

    path: str
    compressed_size: int  # bytes of the compressed file


class File(NamedTuple):
    """A data source's file, as it was when listed; `read` unpacks a compressed file."""

    name: str  # path from the source's root, with "/", without ".gz": the same on every machine
    path: str  # path on this machine
    size: int  # bytes of the content, unpacked
    modification_time: int  # nanoseconds since 1970
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
        """Returns the SHA-256 of the content; raises DataError as `read` does."""
        with self.open_stream() as file:
            return hashlib.file_digest(file, "sha256").digest()

    @contextlib.contextmanager
    def open_stream(self) -> Iterator[BufferedReader]:
        """Opens the content; checks before and after use that the file is as it was when listed."""
        with open_file(self.path) as file:
            self._check(file)
            if self.copy is None:
                yield file
            else:
                with self._open_copy(self.copy.path) as copy:
                    yield copy
            self._check(file)

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

    def _check(self, file: BufferedReader) -> None:
        size = self.size if self.copy is None else self.copy.compressed_size
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) != (size, self.modification_time):
            raise DataError(f"{self.path} has changed since this run listed its documents.")


class FilePattern(NamedTuple):
    """Where a data source's files are: a directory and a pattern below it."""

    root: str  # a directory
    pattern: str  # a glob below the directory
    prefix: str = ""  # put before the files' names, so that names differ between places


@contextlib.contextmanager
def open_file(path: str) -> Iterator[BufferedReader]:
    """Opens a file for reading; raises DataError if it cannot be read or is not a regular file."""
    try:
        with regular_file.open_regular(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


# ---- listing -----------------------------------------------------------------------------------


def place_of(path: str) -> FilePattern:
    """Returns the place of a path or glob of the user's; its root ends before the first wildcard.

    `~` at the beginning is the home directory.
    """
    whole = os.path.expanduser(path)
    if os.path.lexists(whole):  # a name may hold a bracket
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
    files = []
    for place in places:
        names = _match_pattern(place)
        _check_shards(place, names)
        files += [file for name in names if (file := _file(place, name)) is not None]
    files.sort()
    for file, other in itertools.pairwise(files):
        if other.path == f"{file.path}.gz":
            raise DataError(
                f"{file.path} and {other.path} both match: are they the same? Leave one out of the"
                " pattern."
            )
    return files


def _match_pattern(place: FilePattern) -> list[str]:
    """Returns the paths below a place's root that match its pattern, each once.

    Unlike in `glob.glob`, `**` enters a directory only once, however many links lead to it.
    """
    parts = place.pattern.split(os.sep)
    parts = [p for i, p in enumerate(parts) if i == 0 or (p, parts[i - 1]) != ("**", "**")]
    return sorted(set(_match_parts(place.root, "", parts)))


def describe_place(place: FilePattern) -> str:
    """Returns a sentence that says what is at a place, for the error that no file matches."""
    path = os.path.join(place.root, place.pattern)
    if _is_directory(path):
        return f"{path} is a directory: ask for {os.path.join(path, '**', '*')}"
    if not _is_directory(place.root):
        return f"There is no directory {place.root}."
    names = _first_names(sorted(entry.name for entry in entries(place.root)))
    return f"{os.path.abspath(place.root)} holds {names or 'nothing'}."


def _match_parts(root: str, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yields the paths in `folder`, relative to `root`, that match a pattern's parts."""
    if not _is_directory(os.path.join(root, folder)):
        return
    head, *rest = parts
    if head == "**":
        for inner in _folders(root, folder):
            yield from _match_parts(root, inner, rest or ["*"])
        return
    for name in _match_names(os.path.join(root, folder), head):
        path = os.path.join(folder, name)
        yield from _match_parts(root, path, rest) if rest else [path]


def _match_names(folder: str, part: str) -> list[str]:
    """Returns the names in a folder that match a pattern's part between two slashes."""
    if not glob.has_magic(part):
        return [part] if _status(os.path.join(folder, part), follow_symlinks=False) else []
    names = fnmatch.filter([entry.name for entry in entries(folder)], part)
    return names if part.startswith(".") else [name for name in names if name[0] != "."]


def _folders(root: str, top: str) -> Iterator[str]:
    """Yields a directory and all below it, each once, if possible by a path without symlinks."""
    seen: set[tuple[int, int]] = set()
    plain, links = [top], []
    while plain or links:
        folder = plain.pop() if plain else links.pop()
        path = os.path.join(root, folder)
        status = _status(path)
        if status is None or (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield folder
        for entry in sorted(entries(path), key=lambda entry: entry.name, reverse=True):
            if entry.name[0] == ".":
                continue
            if entry.is_symlink():
                if _is_directory(entry.path):
                    links.append(os.path.join(folder, entry.name))
                continue
            with _explain_errors(entry.path):
                is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder:
                plain.append(os.path.join(folder, entry.name))


def _is_directory(path: str) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _status(path: str, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Returns the status of a path, None if nothing is there; hides no error as `isdir` does."""
    with _explain_errors(path):
        try:
            return os.stat(path, follow_symlinks=follow_symlinks)
        except OSError as error:
            if error.errno in _NOTHING:
                return None
            raise


@contextlib.contextmanager
def _explain_errors(path: str) -> Iterator[None]:
    """Turns errors about a path into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a zero byte, or characters that no path can have
        raise DataError(f"{path!r} cannot be read: {error}.") from error


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns what is in a folder, in any order; raises DataError if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror}.") from error


def _file(place: FilePattern, name: str) -> File | None:
    path = os.path.join(place.root, name)
    with _explain_errors(path):
        status = os.stat(path)
    if stat.S_ISDIR(status.st_mode) and not _is_in_place_of_file(place, name):
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = regular_file.kind(status.st_mode)
        raise DataError(f"{path} is {kind}, not a file: leave it out of the pattern.")
    name = place.prefix + name.replace(os.sep, "/").removesuffix(".gz")
    return File(name, path, status.st_size, status.st_mtime_ns)


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
                f"{os.path.abspath(place.root)}: {len(missing)} of {int(total)} shards are missing:"
                f" {_first_names(missing)}. Put them back, or give a pattern that matches only the"
                " shards that are there."
            )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
