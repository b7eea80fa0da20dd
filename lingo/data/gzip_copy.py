"""Unpacked copies of gzip files, kept between runs, so that any record can be read by itself.

A file is unpacked once, as a whole, and gzip's checksum is verified. Only then does the copy get
its name, so a copy is either complete or missing. A copy belongs to a gzip file of one path, size
and modification time. Making a copy deletes the copies that were not read for 90 days.
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

from lingo.data.files import GZIP_MAGIC, Copy, DataError, File, absolute_path
from lingo.data.index_cache import cache_folder, clear_unused
from lingo.data.record_source import CorruptRecord, RecordSource
from lingo.storage.files import StorageError, explain_write_errors, open_atomic

_BLOCK_BYTES = 1 << 20
_MAX_RATIO = 200  # bytes of content per byte of file: text has about 10, zeros 1,000
_UNCHECKED_BYTES = 1 << 30  # contents up to this size may have any ratio


def is_gzip(file: File, source: RecordSource) -> bool:
    """Returns whether a source's file is compressed by gzip, judged by its first bytes.

    Raises DataError if the name ends in .gz but the content is no gzip, or if it cannot be read.
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
    """Returns a gzip file with an unpacked copy, which is made if it is missing.

    `progress` is called with the number of compressed bytes done. Raises DataError if the file is
    damaged, StorageError if the copy cannot be written.
    """
    folder = cache_folder("unpacked")
    about = json.dumps([absolute_path(file.path), file.size, file.version])
    copy = folder / hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()
    if not copy.is_file():
        try:
            with explain_write_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder, keep=copy)
            _write_content(file, copy, progress)
        except StorageError as error:
            raise StorageError(
                f"{file.path} must be unpacked before it is read: {error} Free room there, or set"
                " XDG_CACHE_HOME to another folder."
            ) from None
    return file._replace(size=copy.stat().st_size, copy=Copy(str(copy), file.size))


def describe_copies(files: Sequence[File]) -> list[str]:
    """Returns a sentence about the unpacked files; [] if there are no such files."""
    sizes = [(file.copy.compressed_size, file.size) for file in files if file.copy is not None]
    if not sizes:
        return []
    before, after = map(sum, zip(*sizes, strict=True))
    count = "1 gzip file" if len(sizes) == 1 else f"{len(sizes):,} gzip files"
    return [
        f"unpacked {count} of {before:,} bytes to {after:,} bytes in {cache_folder('unpacked')}"
    ]


def _starts_with_record(file: File, source: RecordSource) -> bool:
    """Returns whether a file starts with a record; a gzip file has no valid record checksum."""
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
    """Yields the unpacked content of a gzip file; `stream` reads its compressed bytes.

    Raises DataError if the file is damaged, or implausibly small for its content.
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
            f" {stream.tell():,} of the file: {_reason(error)}. No part of it can be trusted, so"
            " max_damaged cannot leave out just some records: write it again."
        ) from None


def _reason(error: Exception) -> str:
    return str(error).partition(":")[2].strip() if isinstance(error, zlib.error) else str(error)


def _check_ratio(file: File, size: int, read_bytes: int) -> None:
    if size > max(_UNCHECKED_BYTES, _MAX_RATIO * read_bytes):
        raise DataError(
            f"{file.path}: the first {read_bytes:,} bytes unpack to more than {size:,}, more"
            " than is plausible for text. If it is sound, unpack it by gunzip and read the result."
        )
