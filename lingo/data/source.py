"""Where documents come from: files in one fixed order, and the documents in each.

A document is a run of bytes in a file, and its text is made from these bytes alone: it is the bytes
themselves (a text file), or decoded from them (a string in a line of JSON). So an index of spans is
enough to find any document again without reading those before it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np

from lingo.config.params import Configurable, ParamError, fields
from lingo.errors import LingoError

Read = Callable[[int, int], bytes]
"""Returns bytes start, ..., stop - 1 of a file, or of a document."""

_GZIP = b"\x1f\x8b"


class DataError(LingoError, ValueError):
    """Data that is missing, damaged or changed; the message says which."""

    exit_code: ClassVar[int] = 5


class File(NamedTuple):
    """A file of a source, as it was when listed.

    Attributes:
        name: path from the source's root, with "/": the same on every machine.
        path: where it is on this one.
        size: in bytes.
        modified: time of the last change, in nanoseconds.
    """

    name: str
    path: str
    size: int
    modified: int

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes start, ..., stop - 1.

        Raises:
            DataError: if the file cannot be read, or is not the one that was listed.
        """
        with self.opened() as read:
            return read(start, stop)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Read]:
        """Opens the file for several calls of what `read` does; raises DataError as `read`."""
        with self._opened() as file:

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
        """Returns the SHA-256 of the content; raises DataError as `read`."""
        with self._opened() as file:
            return hashlib.file_digest(file, "sha256").digest()  # pyright: ignore[reportArgumentType]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with open(self.path, "rb") as file:
                now = os.fstat(file.fileno())
                if (now.st_size, now.st_mtime_ns) != (self.size, self.modified):
                    raise DataError(f"{self.path} has changed since this run listed its documents.")
                yield file
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}.") from error


class Place(NamedTuple):
    """Where files of a source are.

    Attributes:
        root: a directory.
        pattern: glob below it.
        prefix: stands before their names, to tell those of several places apart.
    """

    root: str
    pattern: str
    prefix: str = ""


class Source(Configurable, kind=True):
    """Documents in files.

    A subclass says where the files are (`places`). One whose files hold several documents defines
    `spans`; one whose documents are decoded sets `decodes` and defines `text`.

    Attributes:
        decodes: whether a document's text is made by `text`; else it is the document's bytes, of
            which any part can be read alone.
        unit: what messages call a document.
    """

    split: Literal["all", "train", "heldout"] = "all"  # train and heldout share no document
    heldout_fraction: float = 0.05  # share that is held out, chosen by a hash
    split_by: Literal["file", "document"] = "file"  # what is hashed: a file's name, or a text
    unique: bool = False  # leave out every document whose text has been before

    decodes: ClassVar[bool] = False
    unit: ClassVar[str] = "document"

    def check(self) -> None:
        if not 0 < self.p.heldout_fraction < 1:
            raise ParamError(f"heldout_fraction={self.p.heldout_fraction} is not between 0 and 1.")

    def describe(self) -> str:
        """Returns what the source is, in one line: its class, and the fields that are set."""
        values = {name: getattr(self.p, name) for name in fields(self.p.cls)}
        given = [f"{n}={v!r}" for n, v in values.items() if v != fields(self.p.cls)[n].default]
        return f"{type(self).__name__}({', '.join(given)})"

    def places(self) -> list[Place]:
        """Returns where the files are; raises DataError if that is nowhere."""
        raise NotImplementedError(f"{type(self).__name__} has no places")

    def spans(self, file: File, read: Read) -> Iterable[tuple[int, int]]:
        """Yields (first byte, number of bytes) of each document in a file, in order: here, of one.

        Args:
            file: which.
            read: reads it, opened.

        Raises:
            DataError: with path and byte, if the file is not made as it should be.
        """
        del read
        return [(0, file.size)]

    def text(self, data: bytes, where: str) -> bytes:
        """Returns the text of a document, in UTF-8; an empty one is left out.

        Args:
            data: the bytes of its span.
            where: begins the message if they are not what they should be.

        Raises:
            DataError: if they are not.
        """
        del where
        return data

    def files(self) -> list[File]:
        """Returns the files that hold documents of this split, sorted by name.

        Raises:
            DataError: if there is none; says what was looked for and what is there.
        """
        places = self.places()
        files = sorted(file for place in places for file in _listed(place))
        if not files:
            raise DataError(f"{self.describe()}: no file matches. {_whats_there(places[0])}")
        if self.p.split_by == "document":
            return files
        inside = self.in_split(np.array([_hash(file.name) for file in files], np.uint64))
        chosen = [file for file, taken in zip(files, inside, strict=True) if taken]
        if not chosen:
            raise DataError(
                f"{self.describe()}: none of the {len(files)} files that match is in this split."
                " Give more files, another heldout_fraction, or split_by=document."
            )
        return chosen

    def in_split(self, hashes: np.ndarray) -> np.ndarray:
        """Returns which files or documents are in this split, bool [N].

        Args:
            hashes: uint64 [N], evenly spread: the first 8 bytes of SHA-256 of a name or a text.
        """
        if self.p.split == "all":
            return np.ones(len(hashes), bool)
        heldout = hashes < np.uint64(self.p.heldout_fraction * 2.0**64)
        return heldout == (self.p.split == "heldout")


class InstalledSource(Source):
    """The source code of an installed Python package, found without importing it."""

    package: str = "tensorflow"  # top-level import name
    pattern: str = "**/*.py"  # glob below the package's directory

    def check(self) -> None:
        super().check()
        check_package(self.p.package)

    def places(self) -> list[Place]:
        return [Place(package_directory(self.p.package), self.p.pattern)]


class MatchingFiles(Source):
    """Your own files: every one that matches a pattern."""

    pattern: str  # a path, or a glob such as ~/books/**/*.txt; ** is any depth

    def check(self) -> None:
        super().check()
        if not self.p.pattern:
            raise ParamError("pattern is empty: give a path or a glob, such as ~/books/**/*.txt.")

    def places(self) -> list[Place]:
        """Returns the one place of a path or a glob; names begin at the first wildcard."""
        whole = os.path.expanduser(self.p.pattern)
        if os.path.lexists(whole):  # a name may hold a bracket
            return [Place(os.path.dirname(whole) or ".", glob.escape(os.path.basename(whole)))]
        root = whole
        while glob.has_magic(root) or root == whole:
            root = os.path.dirname(root)
        return [Place(root or ".", os.path.relpath(whole, root or "."))]


class TextFiles(MatchingFiles):
    """Your own text: every file that matches a pattern is a document."""


# ---- places ------------------------------------------------------------------------------------


def check_package(package: str) -> None:
    """Raises ParamError for what cannot be the name of a package."""
    if not package.isidentifier():
        raise ParamError(f"package={package!r} is not the name of a top-level package.")


def package_directory(package: str) -> str:
    """Returns where an installed package is; raises DataError if it is not."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"no package {package!r} is installed here.")
    return next(iter(spec.submodule_search_locations))


def refuse_gzip(file: File, read: Read) -> None:
    """Raises DataError for a compressed file: nothing in it can be found without all before it."""
    if file.size >= 2 and read(0, 2) == _GZIP:
        raise DataError(f"{file.path} is compressed by gzip: `gunzip` it, then read that.")


def _listed(place: Place) -> list[File]:
    """Returns the files of a place; no directories, no devices."""
    names = glob.glob(place.pattern, root_dir=place.root, recursive=True)
    files = [_file(place, name) for name in names]
    return [file for file in files if file is not None]


def _file(place: Place, name: str) -> File | None:
    path = os.path.join(place.root, name)
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(found.st_mode):
        return None
    return File(place.prefix + name.replace(os.sep, "/"), path, found.st_size, found.st_mtime_ns)


def _whats_there(place: Place) -> str:
    """Returns a sentence for the message that nothing matches."""
    path = os.path.join(place.root, place.pattern)
    if os.path.isdir(path):
        return f"{path} is a directory: ask for {os.path.join(path, '**', '*')}"
    if not os.path.isdir(place.root):
        return f"There is no directory {place.root}."
    names = sorted(os.listdir(place.root))
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{os.path.abspath(place.root)} holds {shown or 'nothing'}."


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big")
