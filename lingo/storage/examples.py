"""Files of examples: arrays by name, whose first axis counts the examples.

x.npz      an archive of NumPy, with an array for each name
x.jsonl    a line for each example, {"name": numbers, ...}; a number that is not finite is written
           as null, which is read as NaN
x.csv      a table of the arrays that have one value for each example; only written
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import lzma
import math
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lingo.config.base import regular_file
from lingo.config.base.errors import ParamError
from lingo.storage.files import explain_write_errors, open_atomic

SUFFIXES = (".npz", ".jsonl")
OUTPUT_SUFFIXES = (*SUFFIXES, ".csv")

ARCHIVE_ERRORS = (
    ValueError,
    TypeError,
    SyntaxError,
    OverflowError,
    RuntimeError,
    EOFError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""The errors that NumPy raises for a file that is damaged or not an archive."""

_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_PLACES = {"file", "audio", "example_id"}  # arrays that say which example it is

MAX_AXES = 32
"""The most axes of an array in a file; NumPy 1 has no more."""

_ARCHIVES = (b"PK\3\4", b"PK\5\6")  # first bytes of an archive, and of an empty one
_UNCHECKED_BYTES = 1 << 28  # contents up to this size may have any ratio, such as zeros
_MAX_RATIO = 100

Add = Callable[[Mapping[str, np.ndarray]], None]
"""Adds the examples of a batch, {name: [B, ...]}."""


def check_suffix(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raises ParamError unless a path ends in one of `suffixes`."""
    if path.suffix not in suffixes:
        raise ParamError(f"{path}: a file of examples ends in {' or '.join(suffixes)}")


def read_examples(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file, {name: [N, ...]}, in NumPy's types.

    Raises ParamError if the file is missing, damaged, or holds something else.
    """
    check_suffix(path)
    try:
        with regular_file.open_regular(path) as file:
            return parse_examples(file, str(path))
    except OSError as error:
        raise ParamError(f"{path} cannot be read: {error.strerror or error}") from None


def parse_examples(file: BinaryIO, path: str) -> dict[str, np.ndarray]:
    """Returns the arrays of the open file of a path, as `read_examples` does."""
    try:
        return read_archive(file) if path.endswith(".npz") else _read_lines(file)
    except ARCHIVE_ERRORS as error:
        raise ParamError(f"{path} cannot be read: {error}") from None


@contextlib.contextmanager
def write_examples(path: Path) -> Iterator[Add]:
    """Yields a function that adds examples to a new file; the file appears when it is complete.

    Only the added batch is in memory. After an error there is no file. The function raises
    ParamError if an archive would get arrays of several shapes, or a table has no column;
    StorageError is raised if the file cannot be written.
    """
    check_suffix(path, OUTPUT_SUFFIXES)
    with open_atomic(path) as file:
        if path.suffix == ".npz":
            with contextlib.ExitStack() as parts:
                archive = _Archive(path, parts)
                yield archive.add
                with explain_write_errors(path):
                    archive.write(file)
        elif path.suffix == ".csv":
            yield _Table(path, file).add
        else:

            def add(batch: Mapping[str, np.ndarray]) -> None:
                with explain_write_errors(path):
                    file.writelines(json_lines(batch))

            yield add


class _Archive:
    """An .npz file whose arrays grow; each array is in an unnamed file until all are complete."""

    def __init__(self, path: Path, parts: contextlib.ExitStack) -> None:
        """`path` is the file to be written; `parts` closes the files of the arrays."""
        self._path, self._parts = path, parts
        self._files: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray] = {}  # the first example, for shapes and dtypes
        self._sizes: dict[str, int] = {}
        self._texts: dict[str, list[np.ndarray]] = {}

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        for name, array in batch.items():
            if array.dtype.kind == "U":  # the longest text, known at the end, decides the dtype
                self._texts.setdefault(name, []).append(array)
                continue
            first = self._arrays.setdefault(name, array[:1].copy())
            if array.shape[1:] != first.shape[1:]:
                raise ParamError(
                    f"{self._path}: {name!r} has examples of shapes {list(first.shape[1:])} and"
                    f" {list(array.shape[1:])}, which do not fit into one array: write .jsonl"
                )
            self._sizes[name] = self._sizes.get(name, 0) + len(array)
            with explain_write_errors(self._path):
                if name not in self._files:
                    part = tempfile.TemporaryFile(dir=self._path.parent)  # noqa: SIM115
                    self._files[name] = self._parts.enter_context(part)
                self._files[name].write(array.tobytes())

    def write(self, file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, part in self._files.items():
                first = self._arrays[name]
                header = {
                    "descr": np.lib.format.dtype_to_descr(first.dtype),
                    "fortran_order": False,
                    "shape": (self._sizes[name], *first.shape[1:]),
                }
                part.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, header)
                    shutil.copyfileobj(part, entry)
            for name, parts in self._texts.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.concatenate(parts), allow_pickle=False)


class _Table:
    """A table in a CSV file: a column for each array with one value per example."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._columns = path, file, list[str]()

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        if not self._columns:
            self._columns = [name for name, array in batch.items() if array.ndim == 1]
            if set(self._columns) <= _PLACES:
                others = ", ".join(name for name in batch if name not in _PLACES)
                raise ParamError(
                    f"{self._path}: a table has one value in a column, but an example has several"
                    f" in each of {others}: write .npz or .jsonl"
                )
            self._write([self._columns])
        # As texts, numbers have the digits of their own type: 0.1, not 0.10000000149011612.
        self._write(zip(*(batch[name].astype(str) for name in self._columns), strict=True))

    def _write(self, rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        with explain_write_errors(self._path):
            self._file.write(text.getvalue().encode(errors="replace"))


def read_archive(file: BinaryIO) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive, by name; raises one of ARCHIVE_ERRORS if it is damaged."""
    start = file.read(len(_ARCHIVES[0]))
    file.seek(0)
    if start not in _ARCHIVES:
        raise ValueError("it is not an archive of named arrays, which np.savez writes")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_ratio(entries)
        return {
            name: _read_array(archive, entry) for name, entry in _entries_by_name(entries).items()
        }


def _entries_by_name(entries: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Returns the entries of an archive by the names of their arrays."""
    names = [entry.filename.removesuffix(".npy") for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("two of its arrays have the same name")
    return dict(zip(names, entries, strict=True))


def _check_ratio(entries: Sequence[zipfile.ZipInfo]) -> None:
    """Raises ValueError for an archive that unpacks to more than is plausible for data."""
    size, packed = (sum(getattr(e, n) for e in entries) for n in ("file_size", "compress_size"))
    if size > max(_UNCHECKED_BYTES, _MAX_RATIO * packed):
        raise ValueError(
            f"its {packed:,} bytes would unpack to {size:,}, more than is plausible for data; if"
            " the data is sound, write it by np.savez, which does not compress"
        )


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Returns an array; first checks that its shape and dtype fit its number of bytes."""
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"{entry.filename!r:.80} has the unknown format {version}")
        shape, _, dtype = _HEADERS[version](stream)
        has_bytes = entry.file_size - stream.tell()
        if dtype.hasobject:
            raise ValueError(f"{entry.filename!r:.80} is an array of Python objects")
        if len(shape) > MAX_AXES or min(shape, default=0) < 0:
            raise ValueError(f"{entry.filename!r:.80} has the shape {shape!s:.80}")
        if (needs := math.prod(shape) * dtype.itemsize) != has_bytes:
            raise ValueError(
                f"{entry.filename!r:.80} has {has_bytes:,} bytes, but its header, {dtype!s:.80}"
                f" {list(shape)!s:.80}, needs {needs:.0f}"
            )
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _read_lines(file: BinaryIO) -> dict[str, np.ndarray]:
    examples: dict[str, list[np.ndarray]] = {}
    for number, line in enumerate(file, start=1):
        row = _row(line, number)
        if number > 1 and row.keys() != examples.keys():
            raise ValueError(f"line {number} has {sorted(row)}, but line 1 has {sorted(examples)}")
        for name, value in row.items():
            array, own = _array(value, name, number), examples.setdefault(name, [])
            if own and own[0].shape != array.shape:
                raise ValueError(
                    f"{name!r} has shape {list(array.shape)} in line {number}, but"
                    f" {list(own[0].shape)} in line 1: pad the examples to one shape"
                )
            own.append(array)
    return {name: np.stack(own) for name, own in examples.items()}


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f'line {number} is not an example, {{"name": numbers, ...}}')
    return row


def _array(value: Any, name: str, number: int) -> np.ndarray:
    with contextlib.suppress(ValueError, TypeError):  # lists of several lengths; objects
        array = np.array(value)
        if array.dtype == object:
            array = np.array(value, float)  # null becomes NaN
        if array.dtype.kind in "bif":
            return array
    raise ValueError(f"{name!r} in line {number} is neither a number nor a list of numbers")


def json_lines(batch: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yields a line of JSON for each example of a batch, {name: [B, ...]}."""
    columns = [_as_json(array) for array in batch.values()]
    for values in zip(*columns, strict=True):
        yield f"{json.dumps(dict(zip(batch, values, strict=True)))}\n".encode()


def _as_json(array: np.ndarray) -> list[Any]:
    """Returns an array [B, ...] as lists, with None for numbers that are not finite."""
    if array.dtype.kind == "f" and not math.isfinite(array.sum(dtype=np.float64)):
        numbers: Any = array.astype(object)
        numbers[~np.isfinite(array)] = None
        return numbers.tolist()
    return array.tolist()
