"""Where documents come from: files in one fixed order, and the documents in each.

A document is a run of bytes in a file, and its text is made from these bytes alone: it is the bytes
themselves (a text file), or decoded from them (a string in a line of JSON). So an index of spans is
enough to find any document again without reading those before it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np

from lingo.config import ranges
from lingo.config.params import ParamError
from lingo.config.types import FilePath
from lingo.data.sources.files import DataError, File, Place, Read, list_files, whats_there
from lingo.data.splittable import Splittable, split_hash


class Source(Splittable, kind=True):
    """Documents in files.

    A subclass says where the files are (`places`). One whose files hold several documents defines
    `spans`; one whose documents are decoded sets `decodes` and defines `text`.

    Attributes:
        decodes: whether a document's text is made by `text`; else it is the document's bytes, of
            which any part can be read alone.
        unit: what messages call a document.
        checksums: whether a file of another form shows by these; else by the bytes it begins with.
    """

    split_by: Literal["file", "document"] = "file"  # what is hashed: a file's name, or a text
    unique: bool = False  # leave out every document whose text has been before, in any split

    decodes: ClassVar[bool] = False
    unit: ClassVar[str] = "document"
    checksums: ClassVar[bool] = False

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

    def document(self, file: File, data: bytes, where: str) -> bytes:
        """As `text`, for a source whose texts depend on the names of their files, too.

        Args:
            file: which the span is in.
            data: the bytes of its span.
            where: begins the message if they are not what they should be.
        """
        del file
        return self.text(data, where)

    def identity(self, read: Read, size: int) -> tuple[int, int]:
        """Returns what of a text its split goes by, and `unique`: first byte, byte behind the last.

        Args:
            read: reads the text.
            size: its number of bytes.
        """
        del read
        return 0, size

    def files(self) -> list[File]:
        """Returns the files that hold documents of this split, sorted by name.

        Those of all splits, if which documents count depends on them (`shares_index`).

        Raises:
            DataError: if there is none; says what was looked for and what is there. As `listed`.
        """
        places = self.places()
        files = list_files(places)
        if not files:
            raise DataError(f"{self.describe()}: no file matches. {whats_there(places[0])}")
        if self.p.split_by == "document":
            return files
        chosen = [f for f, taken in zip(files, self.files_in_split(files), strict=True) if taken]
        if not chosen:
            raise DataError(
                f"{self.describe()}: none of the {len(files)} files that match is in this split."
                " Give more files, another heldout_fraction, or split_by=document."
            )
        return files if self.shares_index else chosen

    @property
    def shares_index(self) -> bool:
        """Whether one index has the documents of all splits."""
        return self.p.split_by == "document" or self.p.unique

    def files_in_split(self, files: Sequence[File]) -> np.ndarray:
        """Returns which files are in this split, bool [F], where a file's name is hashed."""
        hashes = [split_hash(os.fsencode(file.name)) for file in files]
        return self.in_split(np.array(hashes, np.uint64))


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

    pattern: FilePath  # a path, or a glob such as ~/books/**/*.txt; ** is any depth

    def check(self) -> None:
        super().check()
        if not self.p.pattern:
            raise ParamError("pattern is empty: give a path or a glob, such as ~/books/**/*.txt")
        if "\0" in self.p.pattern:
            raise ParamError(f"pattern={self.p.pattern!r}: no path has a NUL character in it")

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


class Records(Source):
    """Files of records, each a document that is decoded by itself.

    A record that cannot be decoded is an error; up to `max_damaged` of them, where that is not 0,
    are left out, counted and listed, when the index is made. Where not even the place of the next
    record is known, the rest of a file counts as so many records as its bytes would be.
    """

    split_by: Literal["file", "document"] = "document"  # what is hashed: a file's name, or a text
    max_damaged: int = 0  # damaged records that may be left out; with more, nothing is read

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "record"

    def check(self) -> None:
        super().check()
        ranges.check_not_negative(self.p, "max_damaged")


class CorruptRecord(DataError):
    """A record that cannot be decoded, which `max_damaged` may allow to leave out."""


# ---- places ------------------------------------------------------------------------------------


def check_package(package: str) -> None:
    """Raises ParamError for what cannot be the name of a package."""
    if not package.isidentifier():
        raise ParamError(f"package={package!r} is not the name of a top-level package")


def package_directory(package: str) -> str:
    """Returns where an installed package is; raises DataError if it is not."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # __main__ is a module without one
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"no package {package!r} is installed here.")
    return next(iter(spec.submodule_search_locations))
