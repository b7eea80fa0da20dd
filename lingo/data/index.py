"""The index of a source: where every document is and how many tokens it has, kept between runs.

Making it reads all data once; what comes later reads only what it needs. It is kept in the user's
cache directory under a key of all that it depends on: the source, the tokenizer, and name, size and
time of change of every file. A cache that is missing, damaged or cannot be written costs time only.
"""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingo.config.params import fields
from lingo.data.source import DataError, File, Read, Source
from lingo.data.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called during long work with bytes done and bytes in all."""

_FORMAT = 3
_COLUMNS = ("file_id", "start", "extent", "size", "tokens", "first_cut", "num_cuts")
_BLOCK_BYTES = 1 << 20
_RECENT_BYTES = 1 << 26


class Recent:
    """Decoded texts of documents, those of last use up to some bytes in all.

    The rows of a long document are asked for one by one; a source that fits is decoded once.

    Args:
        max_bytes: of all texts together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._texts: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, document: int) -> bytes | None:
        """Returns a text, or None if it is not kept."""
        with self._lock:
            if document in self._texts:
                self._texts.move_to_end(document)
            return self._texts.get(document)

    def put(self, document: int, text: bytes) -> None:
        """Keeps a text, and lets go of those of longest ago for it."""
        with self._lock:
            self._num_bytes += len(text) - len(self._texts.get(document, b""))
            self._texts[document] = text
            while self._num_bytes > self._max_bytes:
                _, oldest = self._texts.popitem(last=False)
                self._num_bytes -= len(oldest)


class Index(NamedTuple):
    """The documents of a source; those without a token are left out. N documents, F files.

    Attributes:
        source: where the documents are.
        tokenizer: what counted their tokens.
        files: the source's files.
        digest: SHA-256 of names and contents of the files, hexadecimal: of two copies the same.
        file_id: int64 [N], the number of each document's file.
        start: int64 [N], the first byte of its span there.
        extent: int64 [N], bytes of its span.
        size: int64 [N], bytes of its text.
        tokens: int64 [N], tokens of its text.
        cuts: int64 [C, 2], (bytes, tokens) before each place where a text may be cut.
        first_cut: int64 [N], where a document's rows of `cuts` begin.
        num_cuts: int64 [N], how many it has.
        recent: decoded texts that are kept.
    """

    source: Source
    tokenizer: Tokenizer
    files: Sequence[File]
    digest: str
    file_id: np.ndarray
    start: np.ndarray
    extent: np.ndarray
    size: np.ndarray
    tokens: np.ndarray
    cuts: np.ndarray
    first_cut: np.ndarray
    num_cuts: np.ndarray
    recent: Recent

    def read(self, document: int, begin: int, end: int) -> bytes:
        """Returns bytes begin, ..., end - 1 of a document's text.

        Raises:
            DataError: as `File.read` and `Source.text`.
        """
        file, start = self.files[self.file_id[document]], int(self.start[document])
        if not self.source.decodes:
            return file.read(start + begin, start + end)
        text = self.recent.get(document)
        if text is None:
            data = file.read(start, start + int(self.extent[document]))
            text = self.source.text(data, f"{file.path}, byte {start}")
            self.recent.put(document, text)
        return text[begin:end]

    def encoded(self, document: int, begin: int, end: int) -> np.ndarray:
        """Returns tokens begin, ..., end - 1 of a document, int32 [end - begin]."""
        read = functools.partial(self.read, document)
        size = int(self.size[document])
        return self.tokenizer.part(read, size, self._cuts(document), begin, end)

    def bytes_before(self, document: int, token: int) -> int:
        """Returns how many bytes of a document stand before a token of it, or before its end.

        Exact where the text may be cut, and where tokens are bytes; in proportion between.
        """
        size, tokens = int(self.size[document]), int(self.tokens[document])
        cuts = self._cuts(document)
        if not len(cuts):
            return round(size * min(token, tokens) / tokens)
        places = np.concatenate([[(0, 0)], cuts, [(size, tokens)]])
        return round(float(np.interp(token, places[:, 1], places[:, 0])))

    def _cuts(self, document: int) -> np.ndarray:
        """Returns the rows of `cuts` of a document."""
        first = int(self.first_cut[document])
        return self.cuts[first : first + int(self.num_cuts[document])]


def open_index(source: Source, tokenizer: Tokenizer, *, progress: Progress | None = None) -> Index:
    """Returns the index of a source, from the cache if it is there.

    Args:
        source: where the documents are.
        tokenizer: what counts their tokens.
        progress: called while the documents are read, if they have to be.

    Raises:
        DataError: if there is no document, or a file cannot be read or is damaged.
    """
    files = source.files()
    cache = _cache_directory() / f"{_key(files, source, tokenizer)}.index"
    columns = _load(cache)
    if columns is None:
        columns = _measure(files, source, tokenizer, progress or _silent)
        _save(cache, columns)
    digest, cuts, hashes = (columns.pop(name) for name in ("digest", "cuts", "hashes"))
    if source.p.split_by == "document":
        inside = source.in_split(hashes)
        columns = {name: column[inside] for name, column in columns.items()}
    if not len(columns["tokens"]):
        raise DataError(f"{source.describe()}: there is no text in the {len(files)} files.")
    hexadecimal, recent = digest.tobytes().hex(), Recent(_RECENT_BYTES)
    return Index(source, tokenizer, files, hexadecimal, cuts=cuts, recent=recent, **columns)


# ---- making it ---------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A document of a file: its span, and its text."""

    start: int
    extent: int
    read: Read
    size: int


def _measure(
    files: Sequence[File], source: Source, tokenizer: Tokenizer, progress: Progress
) -> dict[str, np.ndarray]:
    """Reads every file; returns the columns of all splits of documents."""
    total, done = sum(f.size for f in files), 0
    rows, hashes, cuts = array.array("q"), array.array("Q"), array.array("q")
    content, seen = hashlib.sha256(), set()
    for number, file in enumerate(files):
        content.update(f"{len(file.name)} {file.name}".encode(errors="surrogateescape"))
        content.update(file.digest())
        shown = 0
        for found in _documents(file, source):
            text_hash = _hash(found, source)
            if source.p.unique:
                if text_hash in seen:
                    continue
                seen.add(text_hash)
            measured = tokenizer.measure(found.read, found.size)
            if measured.tokens:
                cut = len(cuts) // 2, len(measured.cuts)
                rows.extend((number, found.start, found.extent, found.size, measured.tokens, *cut))
                hashes.append(text_hash)
                cuts.extend(itertools.chain.from_iterable(measured.cuts))
            if found.start - shown >= _BLOCK_BYTES:
                shown = found.start
                progress(done + shown, total)
        done += file.size
        progress(done, total)
    table = np.array(rows, np.int64).reshape(-1, len(_COLUMNS))
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(_COLUMNS)}
    return columns | {
        "digest": np.frombuffer(content.digest(), np.uint8),
        "hashes": np.array(hashes, np.uint64),
        "cuts": np.array(cuts, np.int64).reshape(-1, 2),
    }


def _documents(file: File, source: Source) -> Iterator[_Found]:
    """Yields the documents of a file that are not empty."""
    with file.opened() as read:
        for number, (start, extent) in enumerate(source.spans(file, read), 1):
            if source.decodes:
                where = f"{file.path}, {source.unit} {number}, byte {start}"
                data = source.text(read(start, start + extent), where)
                found = _Found(start, extent, _reader(data), len(data))
            else:
                found = _Found(start, extent, _shifted(read, start), extent)
            if found.size:
                yield found


def _reader(data: bytes) -> Read:
    return lambda begin, end: data[begin:end]


def _shifted(read: Read, start: int) -> Read:
    return lambda begin, end: read(start + begin, start + end)


def _hash(found: _Found, source: Source) -> int:
    """Returns the first 8 bytes of the SHA-256 of a document's text; 0 where nobody asks."""
    if source.p.split_by == "file" and not source.p.unique:
        return 0
    content = hashlib.sha256()
    for begin in range(0, found.size, _BLOCK_BYTES):
        content.update(found.read(begin, min(begin + _BLOCK_BYTES, found.size)))
    return int.from_bytes(content.digest()[:8], "big")


def _silent(done: int, total: int) -> None:
    """Shows no progress."""


# ---- the cache: SHA-256 of what follows, then a NumPy archive ------------------------------------


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expanduser(home), "lingo", "index")


def _key(files: Sequence[File], source: Source, tokenizer: Tokenizer) -> str:
    kind = type(source)
    values = {name: repr(getattr(source.p, name)) for name in fields(kind)}
    if source.p.split_by == "document":  # one index serves all splits
        del values["split"], values["heldout_fraction"]
    about = [_FORMAT, kind.__module__, kind.__qualname__, values, tokenizer.describe(), files]
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
