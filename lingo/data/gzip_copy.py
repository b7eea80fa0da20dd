"""Copies of the content of gzip files, kept between runs, from which any record can be read alone.

A file is unpacked once, whole, and checked by the checksum of gzip; the copy then gets its name, so
that a copy is complete or missing. It belongs to a path, size and modification time. Copies that
nobody has read for 90 days are deleted when another is made.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path

from lingo.data.files import GZIP_MAGIC, Copy, DataError, File
from lingo.data.index_cache import cache_folder, clear_unused
from lingo.data.record_source import CorruptRecord, RecordSource
from lingo.storage.files import StorageError, explain_write_errors, open_atomic

_BLOCK_BYTES = 1 << 20
_MAX_RATIO = 200  # of content to file: about 10 for text, and at most 1,000, for zeros alone
_UNCHECKED_BYTES = 1 << 30  # contents up to this size may have any ratio


def is_gzip(file: File, source: RecordSource) -> bool:
    """Returns whether a file of a source is compressed by gzip, by its first bytes.

    Raises DataError if its name ends in .gz and it is not, or if it cannot be read.
    """
    with file.open() as read:
        if read(0, min(file.size, len(GZIP_MAGIC))) == GZIP_MAGIC:
            return not (source.checksums and _starts_with_record(file, source))
    if file.path.endswith(".gz"):
        raise DataError(
            f"{file.path} does not begin as a gzip file does: it is damaged, or has another format;"
            " write it again, or rename it."
        )
    return False


def unpack(file: File, *, progress: Callable[[int], None]) -> File:
    """Returns a gzip file with a copy of its content, which it makes if there is none.

    `progress` is called with the compressed bytes done. Raises DataError if the file is damaged,
    StorageError if the copy cannot be written.
    """
    folder = cache_folder("unpacked")
    about = json.dumps([os.path.abspath(file.path), file.size, file.modification_time])
    copy = folder / hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()
    if not copy.is_file():
        try:
            with explain_write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder, keep=copy)
            _write_content(file, copy, progress)
        except StorageError as error:
            raise StorageError(
                f"{file.path} is unpacked before it is read: {error} Free room there, or set"
                " XDG_CACHE_HOME to another folder."
            ) from None
    return file._replace(size=copy.stat().st_size, copy=Copy(str(copy), file.size))


def describe_copies(files: Sequence[File]) -> list[str]:
    """Returns a sentence on the files that were unpacked; none if there is no such file."""
    sizes = [(file.copy.compressed_size, file.size) for file in files if file.copy is not None]
    if not sizes:
        return []
    before, after = map(sum, zip(*sizes, strict=True))
    count = "1 gzip file" if len(sizes) == 1 else f"{len(sizes):,} gzip files"
    return [
        f"unpacked {count} of {before:,} bytes to {after:,} bytes in {cache_folder('unpacked')}"
    ]


def _starts_with_record(file: File, source: RecordSource) -> bool:
    """Returns whether a file starts with a record, whose checksum no gzip file has by chance."""
    try:
        with file.open() as read:
            next(iter(source.spans(file, read)))
    except CorruptRecord:
        return False
    return True


def _write_content(file: File, copy: Path, progress: Callable[[int], None]) -> None:
    with open_atomic(copy) as out, file.open_stream() as stream:
        os.fchmod(out.fileno(), 0o600)  # the original may be private
        for block in _blocks(file, stream):
            with explain_write_errors(copy):
                out.write(block)
            progress(stream.tell())


def _blocks(file: File, stream: BufferedReader) -> Iterator[bytes]:
    """Yields the content of a gzip file, of which `stream` reads the bytes, in order.

    Raises DataError if it is damaged, or too small for its content.
    """
    size = 0
    try:
        with gzip.GzipFile(fileobj=stream) as content:
            while block := content.read1(_BLOCK_BYTES):
                size += len(block)
                _check_ratio(file, size, stream.tell())
                yield block
    except EOFError:
        raise DataError(
            f"{file.path} is cut short: it ends at byte {file.size:,}, inside its gzip data, after"
            f" {size:,} bytes of content: write it again."
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{file.path} is damaged, after {size:,} bytes of content, before byte"
            f" {stream.tell():,} of the file: {_reason(error)}. Nothing in it can be trusted, so"
            " that max_damaged leaves out no part of it: write it again."
        ) from None


def _reason(error: Exception) -> str:
    return str(error).partition(":")[2].strip() if isinstance(error, zlib.error) else str(error)


def _check_ratio(file: File, size: int, read_bytes: int) -> None:
    if size > max(_UNCHECKED_BYTES, _MAX_RATIO * read_bytes):
        raise DataError(
            f"{file.path}: the first {read_bytes:,} bytes unpack to more than {size:,}, more"
            " than is plausible for text. If it is sound, unpack it by gunzip, then read that."
        )
