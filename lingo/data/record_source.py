"""Sources of records: files in one fixed order, and the documents in each.

A document is a span of bytes in a file, and its text depends on these bytes alone: it is the bytes
themselves (a text file), or decoded from them (a string in a line of JSON, an image with its
class). So an index of spans is enough to find any document again without reading earlier ones.
Files whose records are not such spans have to be copied first, as compressed files are
(`gzip_copy.py`).

Axes: F files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.base.types import FilePath
from lingo.config.params import Configurable, ParamError, fields
from lingo.data.files import (
    DataError,
    File,
    FilePattern,
    Read,
    blocks,
    describe_place,
    list_files,
    place_of,
)


class Splittable(Configurable):
    """Data whose items are split: the items with the smallest hashes are held out.

    Whether an item is held out depends on this item alone. A larger `heldout_fraction` holds out
    every item that a smaller fraction does.
    """

    split: Literal["all", "train", "heldout"] = "all"  # train and heldout share nothing
    heldout_fraction: float = 0.05  # share that is held out, chosen by a hash

    def check(self) -> None:
        if not 0 < self.p.heldout_fraction < 1:
            raise ParamError(f"heldout_fraction={self.p.heldout_fraction} is not between 0 and 1")

    def describe(self) -> str:
        """Describes the data in one line: its class, and the fields that differ from defaults."""
        values = {name: getattr(self.p, name) for name in fields(self.p.cls)}
        changes = [f"{n}={v!r}" for n, v in values.items() if v != fields(self.p.cls)[n].default]
        return f"{type(self).__name__}({', '.join(changes)})"

    def in_split(self, hashes: np.ndarray) -> np.ndarray:
        """Returns whether items are in this split, bool [N], by their `split_hash`, uint64 [N]."""
        if self.p.split == "all":
            return np.ones(len(hashes), bool)
        heldout = hashes < np.uint64(self.p.heldout_fraction * 2.0**64)
        return heldout == (self.p.split == "heldout")


def split_hash(data: bytes) -> int:
    """Returns the first 8 bytes of the SHA-256 of some data, as a number below 2**64."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


class RecordSource(Splittable, interface=True):
    """Records in files, one or several per file. Messages call a record by its `unit`.

    A subclass defines where the files are (`places`). If files hold several documents, it defines
    `spans`. If documents are decoded, it sets `decodes` and defines `text`. Without `decodes`, a
    document's text is its bytes, and any part of it can be read alone.
    """

    split_by: Literal["file", "document"] = "file"  # what is hashed: a file's name, or a text
    unique: bool = False  # leave out every document whose text occurred before, in any split

    decodes: ClassVar[bool] = False
    unit: ClassVar[str] = "document"  # the word for a document in messages
    longest_bytes: ClassVar[int] = (1 << 31) - 1  # the limit of a tf.train.Example
    checksums: ClassVar[bool] = False  # whether records have checksums, which reveal compression

    def places(self) -> list[FilePattern]:
        """Returns where the files are; raises DataError if there is no such place."""
        raise NotImplementedError(f"{type(self).__name__} has no places")

    def spans(self, file: File, read: Read) -> Iterable[tuple[int, int]]:
        """Yields (first byte, number of bytes) of each document in a file, by default all of it."""
        del read
        return [(0, file.size)]

    def text(self, data: bytes, where: str) -> bytes:
        """Returns the text of a document's span, in UTF-8; an empty text is left out.

        Raises DataError, which begins with `where`, if the bytes cannot be decoded.
        """
        del where
        return data

    def document(self, file: File, data: bytes, where: str) -> bytes:
        """Returns the same as `text`; a subclass may also use the name of the document's file."""
        del file
        return self.text(data, where)

    def where(self, file: File, number: int, start: int) -> str:
        """Returns where a document is, for errors, by its number (from 1) and first byte."""
        return f"{file.path}, {self.unit} {number}, byte {start}"

    def identity(self, read: Read, size: int) -> Iterable[bytes]:
        """Yields the bytes that decide a text's split and whether it is unique, by default all."""
        return blocks(read, 0, size)

    def files(self) -> list[File]:
        """Returns the files of this split, sorted by name; with `shares_index`, of all splits.

        Raises DataError if there are no files, and as `list_files` does.
        """
        files = self.all_files()
        if self.p.split_by == "document":
            return files
        indices = np.flatnonzero(self.files_in_split(files))
        if not len(indices):
            raise DataError(
                f"{self.describe()}: none of the {len(files)} files that match is in this split."
                " Give more files, another heldout_fraction, or split_by=document."
            )
        return files if self.shares_index else [files[i] for i in indices]

    def all_files(self) -> list[File]:
        """Returns the files of all splits, sorted by name; raises DataError as `files` does."""
        places = self.places()
        files = list_files(places)
        if not files:
            raise DataError(f"{self.describe()}: no file matches. {describe_place(places[0])}")
        return files

    @property
    def shares_index(self) -> bool:
        """Whether one index holds the documents of all splits."""
        return self.p.split_by == "document" or self.p.unique

    def files_in_split(self, files: Sequence[File]) -> np.ndarray:
        """Returns whether each file is in this split, by the hash of its name, bool [F]."""
        hashes = [split_hash(os.fsencode(file.name)) for file in files]
        return self.in_split(np.array(hashes, np.uint64))


class InstalledSource(RecordSource):
    """The source code of an installed Python package, found without importing it."""

    package: str = "tensorflow"  # top-level import name
    pattern: str = "**/*.py"  # glob below the package's directory

    def check(self) -> None:
        super().check()
        _check_package(self.p.package)

    def places(self) -> list[FilePattern]:
        return [FilePattern(_package_directory(self.p.package), self.p.pattern)]


class PythonPackages(RecordSource):
    """Documents in the Python files of some packages; a file's name begins with its package's."""

    packages: list[str] = ["tensorflow", "keras", "numpy"]  # top-level import names

    def check(self) -> None:
        super().check()
        if not self.p.packages:
            raise ParamError("packages is empty: name one that is installed, such as numpy")
        for package in self.p.packages:
            _check_package(package)

    def places(self) -> list[FilePattern]:
        return [FilePattern(_package_directory(p), "**/*.py", f"{p}/") for p in self.p.packages]


class MatchingFiles(RecordSource):
    """Your own files: every file that matches a pattern."""

    pattern: FilePath  # a path, or a glob such as ~/books/**/*.txt; ** is any depth

    def check(self) -> None:
        super().check()
        if not self.p.pattern:
            raise ParamError("pattern is empty: give a path or a glob, such as ~/books/**/*.txt")
        if "\0" in self.p.pattern:
            raise ParamError(f"pattern={self.p.pattern!r}: no path has a NUL character in it")

    def places(self) -> list[FilePattern]:
        return [place_of(self.p.pattern)]


class TextFiles(MatchingFiles):
    """Your own text: every file that matches a pattern is a document."""


class DecodedRecords(RecordSource):
    """Files of records, each a document that is decoded by itself.

    A record that cannot be decoded is an error. With `max_damaged`, indexing leaves out up to that
    many such records, and reports them. If the next record cannot be found, the rest of the file is
    lost; the mean size of the earlier records decides how many records the rest counts as.
    """

    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text
    max_damaged: int = 0  # damaged records that may be left out; more are an error

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "record"

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "max_damaged")


class CorruptRecord(DataError):
    """A record that cannot be decoded; `max_damaged` may allow leaving it out."""


def _check_package(package: str) -> None:
    if not package.isidentifier():
        raise ParamError(f"package={package!r} is not the name of a top-level package")


def _package_directory(package: str) -> str:
    """Returns the directory of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # __main__ is a module without a spec
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"no package {package!r} is installed here.")
    return next(iter(spec.submodule_search_locations))
