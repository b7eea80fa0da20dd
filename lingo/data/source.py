"""Where documents come from: files of text, listed in one fixed order and split by their names."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, ClassVar, Literal, NamedTuple

from lingo.config.params import Configurable, ParamError
from lingo.errors import LingoError


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
        with self._opened() as file:
            file.seek(start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise DataError(
                f"{self.path}: wanted bytes {start} to {stop}, got {len(data)} of them."
            )
        return data

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


class Source(Configurable, kind=True):
    """Documents in files.

    A subclass says where the files are; one that keeps several documents in a file defines `spans`.
    """

    split: Literal["all", "train", "heldout"] = "all"  # train and heldout share no file
    heldout_fraction: float = 0.05  # share of the files held out, chosen by a hash of their names

    def check(self) -> None:
        if not 0 < self.p.heldout_fraction < 1:
            raise ParamError(f"heldout_fraction={self.p.heldout_fraction} is not between 0 and 1.")

    def describe(self) -> str:
        """Returns what the source is, in one line; equal for equal parameters only."""
        where = f"{type(self).__name__} {self.label()!r}"
        if self.p.split == "all":
            return where
        return f"{where} ({self.p.split}; heldout_fraction {self.p.heldout_fraction})"

    def label(self) -> str:
        """Returns the parameters that say where the files are, as one readable text."""
        raise NotImplementedError

    def locate(self) -> tuple[str, str]:
        """Returns the directory that names start from, and the glob pattern below it."""
        raise NotImplementedError

    def spans(self, file: File) -> list[tuple[int, int]]:
        """Returns (first byte, number of bytes) of each document in a file: here, all of it."""
        return [(0, file.size)]

    def files(self) -> list[File]:
        """Returns the files of this split, sorted by name.

        Raises:
            DataError: if there is none; says what was looked for and what is there.
        """
        root, pattern = self.locate()
        names = sorted(name.replace(os.sep, "/") for name in _match(root, pattern))
        files = [file for name in names if (file := _listed(root, name))]
        if not files:
            raise DataError(f"{self.describe()}: no file matches. {_whats_there(root, pattern)}")
        chosen = [file for file in files if self._in_split(file.name)]
        if not chosen:
            raise DataError(
                f"{self.describe()}: none of the {len(files)} files that match is in this split."
                " Splits are made of whole files: give more files, or another heldout_fraction."
            )
        return chosen

    def _in_split(self, name: str) -> bool:
        if self.p.split == "all":
            return True
        word = hashlib.sha256(os.fsencode(name)).digest()[:8]
        heldout = int.from_bytes(word, "big") < self.p.heldout_fraction * 2.0**64
        return heldout == (self.p.split == "heldout")


class InstalledSource(Source):
    """The source code of an installed Python package, found without importing it."""

    package: str = "tensorflow"  # top-level import name
    pattern: str = "**/*.py"  # glob below the package's directory

    def check(self) -> None:
        super().check()
        if not self.p.package.isidentifier():
            raise ParamError(f"package={self.p.package!r} is not the name of a top-level package.")

    def label(self) -> str:
        return f"{self.p.package}/{self.p.pattern}"

    def locate(self) -> tuple[str, str]:
        spec = importlib.util.find_spec(self.p.package)
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"{self.describe()}: no package {self.p.package!r} is installed here.")
        return next(iter(spec.submodule_search_locations)), self.p.pattern


class TextFiles(Source):
    """Your own text: every file that matches a pattern is a document."""

    pattern: str  # a path, or a glob such as ~/books/**/*.txt; ** is any depth

    def label(self) -> str:
        return self.p.pattern

    def check(self) -> None:
        super().check()
        if not self.p.pattern:
            raise ParamError("pattern is empty: give a path or a glob, such as ~/books/**/*.txt.")

    def locate(self) -> tuple[str, str]:
        whole = os.path.expanduser(self.p.pattern)
        if os.path.lexists(whole):  # a name may hold a bracket
            return os.path.dirname(whole) or ".", glob.escape(os.path.basename(whole))
        root = whole
        while glob.has_magic(root) or root == whole:
            root = os.path.dirname(root)
        return root or ".", os.path.relpath(whole, root or ".")


def _match(root: str, pattern: str) -> list[str]:
    return glob.glob(pattern, root_dir=root, recursive=True)


def _listed(root: str, name: str) -> File | None:
    """Returns the file, or None for a directory or a device."""
    path = os.path.join(root, name)
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    return (
        File(name, path, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
    )


def _whats_there(root: str, pattern: str) -> str:
    """Returns a sentence for the message that nothing matches."""
    path = os.path.join(root, pattern)
    if os.path.isdir(path):
        return f"{path} is a directory: ask for {os.path.join(path, '**', '*')}"
    if not os.path.isdir(root):
        return f"There is no directory {root}."
    names = sorted(os.listdir(root))
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{os.path.abspath(root)} holds {shown or 'nothing'}."
