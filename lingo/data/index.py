"""The index of a source: where every document is and how many tokens it has, kept between runs.

Making it reads all data once; what comes later reads only what it needs. It is kept in the user's
cache directory under a key of all that it depends on: the source, the tokenizer, and name, size and
time of change of every file. A cache that is missing, damaged or cannot be written costs time only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingo.data.source import DataError, File, Source
from lingo.data.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called during long work with bytes done and bytes in all."""

_FORMAT = 1


class Index(NamedTuple):
    """The documents of a source; those without a token are left out. N documents, F files.

    Attributes:
        files: the source's files.
        digest: SHA-256 of names and contents, hexadecimal: of two copies the same.
        file_id: int32 [N], the number of each document's file.
        start: int64 [N], its first byte.
        size: int64 [N], in bytes.
        tokens: int64 [N], in tokens.
    """

    files: Sequence[File]
    digest: str
    file_id: np.ndarray
    start: np.ndarray
    size: np.ndarray
    tokens: np.ndarray

    def read(self, document: int, begin: int, end: int) -> bytes:
        """Returns bytes begin, ..., end - 1 of a document; raises DataError as `File.read`."""
        start = int(self.start[document])
        return self.files[self.file_id[document]].read(start + begin, start + end)


def open_index(source: Source, tokenizer: Tokenizer, *, progress: Progress | None = None) -> Index:
    """Returns the index of a source, from the cache if it is there.

    Args:
        source: where the documents are.
        tokenizer: what counts their tokens.
        progress: called while the documents are read, if they have to be.

    Raises:
        DataError: if there is no document, or a file cannot be read.
    """
    files = source.files()
    cache = _cache_directory() / f"{_key(files, source, tokenizer)}.index"
    columns = _load(cache)
    if columns is None:
        columns = _measure(files, source, tokenizer, progress or _silent)
        _save(cache, columns)
    if not len(columns["tokens"]):
        raise DataError(f"{source.describe()}: all of the {len(files)} files are empty.")
    digest = columns.pop("digest").tobytes().hex()
    return Index(files, digest, **columns)


def _measure(
    files: Sequence[File], source: Source, tokenizer: Tokenizer, progress: Progress
) -> dict[str, np.ndarray]:
    """Reads every file once."""
    total, done = sum(f.size for f in files), 0
    content, rows = hashlib.sha256(), []
    for number, file in enumerate(files):
        content.update(f"{len(file.name)} {file.name}".encode(errors="surrogateescape"))
        content.update(file.digest())
        for start, size in source.spans(file):
            read = functools.partial(_read_span, file, start)
            rows.append((number, start, size, tokenizer.count(read, size) if size else 0))
        done += file.size
        progress(done, total)
    table = np.array([row for row in rows if row[-1]], np.int64).reshape(-1, 4)
    number, start, size, tokens = np.ascontiguousarray(table.T)
    digest = np.frombuffer(content.digest(), np.uint8)
    return dict(
        digest=digest, file_id=number.astype(np.int32), start=start, size=size, tokens=tokens
    )


def _read_span(file: File, start: int, begin: int, end: int) -> bytes:
    return file.read(start + begin, start + end)


def _silent(done: int, total: int) -> None:
    """Shows no progress."""


# ---- the cache: SHA-256 of what follows, then a NumPy archive ------------------------------------


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expanduser(home), "lingo", "index")


def _key(files: Sequence[File], source: Source, tokenizer: Tokenizer) -> str:
    about = [_FORMAT, type(source).__qualname__, source.describe(), tokenizer.describe(), files]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _load(cache: Path) -> dict[str, np.ndarray] | None:
    """Returns the columns, or None if the file is not there or not as it was written."""
    try:
        data = cache.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    with np.load(io.BytesIO(data[32:]), allow_pickle=False) as archive:
        return dict(archive)


def _save(cache: Path, columns: dict[str, np.ndarray]) -> None:
    """Writes the columns, if it can; a reader sees the whole file or none."""
    buffer = io.BytesIO()
    np.savez(buffer, **columns)  # pyright: ignore[reportArgumentType]
    data = buffer.getvalue()
    with contextlib.suppress(OSError):  # the cache saves time, nothing else
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".writing-", dir=cache.parent)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, cache)
        except OSError:
            os.unlink(name)
            raise
