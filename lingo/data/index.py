"""The index of a source: where every document is and how many tokens it has, kept between runs.

Making it reads all data once; what comes later reads only what it needs. It is kept in the user's
cache directory under a key of all that it depends on: the source, the tokenizer, and name, size and
time of change of every file. Records that are damaged are found, and left out if the source allows
it, when the index is made: after that any damage is an error, and the order of examples is fixed.
"""

from __future__ import annotations

import array
import collections
import functools
import hashlib
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingo.config.params import fields
from lingo.config.roots import roots
from lingo.data import index_cache
from lingo.data.damage import Damage
from lingo.data.index_cache import DOCUMENT_COLUMNS, Columns
from lingo.data.source import CorruptRecord, Records, Source
from lingo.data.sources.files import DataError, File, Read, refuse_compressed
from lingo.data.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called during long work with bytes done and bytes in all."""

_FORMAT = 5
_BLOCK_BYTES = 1 << 20
_RECENT_BYTES = 1 << 26
_LONGEST_BYTES = (1 << 31) - 1  # of a record: more is no tf.train.Example, and too much for memory


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
        number: int64 [N], which of its file's documents each is, from 1.
        start: int64 [N], the first byte of its span there.
        extent: int64 [N], bytes of its span.
        size: int64 [N], bytes of its text.
        tokens: int64 [N], tokens of its text.
        cuts: int64 [C, 2], (bytes, tokens) before each place where a text may be cut.
        first_cut: int64 [N], where a document's rows of `cuts` begin.
        num_cuts: int64 [N], how many it has.
        damage: what of the files was left out, in all splits.
        recent: decoded texts that are kept.
        cache: where the index is kept between runs.
    """

    source: Source
    tokenizer: Tokenizer
    files: Sequence[File]
    digest: str
    file_id: np.ndarray
    number: np.ndarray
    start: np.ndarray
    extent: np.ndarray
    size: np.ndarray
    tokens: np.ndarray
    cuts: np.ndarray
    first_cut: np.ndarray
    num_cuts: np.ndarray
    damage: Damage
    recent: Recent
    cache: Path

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
            where = _where(file, self.source, int(self.number[document]), start)
            text = self._text(file, data, where)
            if len(text) != (size := int(self.size[document])):
                index_cache.forget(self.cache)
                raise DataError(
                    f"{where}: its text has {len(text)} bytes, and had {size} when the index was"
                    " made: what reads it has changed. Start again to index it anew."
                )
            self.recent.put(document, text)
        return text[begin:end]

    def _text(self, file: File, data: bytes, where: str) -> bytes:
        try:
            return self.source.document(file, data, where)
        except CorruptRecord as error:
            index_cache.forget(self.cache)
            raise DataError(f"{error} It was not when its index was made.") from None

    def encode(self, document: int, begin: int, end: int) -> np.ndarray:
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
    cache = index_cache.place(_key(files, source, tokenizer))
    columns = index_cache.load(cache, sizes=np.array([file.size for file in files]))
    if columns is None:
        columns = _measure(files, source, tokenizer, progress or _silent)
        index_cache.save(cache, columns)
    documents, damage = columns.documents, columns.damage
    if damage.records > _max_damaged(source):
        raise DataError(
            f"{source.describe()}: more than max_damaged={_max_damaged(source)}: {damage}"
        )
    if source.shares_index:
        inside = _in_split(columns, files, source)
        documents = {name: column[inside] for name, column in documents.items()}
    if not len(documents["tokens"]):
        raise DataError(f"{source.describe()}: there is no text in the {len(files)} files.")
    return Index(
        source,
        tokenizer,
        files,
        columns.digest.hex(),
        cuts=columns.cuts,
        damage=damage,
        recent=Recent(_RECENT_BYTES + int(documents["size"].max())),
        cache=cache,
        **documents,
    )


def _in_split(columns: Columns, files: Sequence[File], source: Source) -> np.ndarray:
    """Returns which documents of an index of all splits are in that of a source, bool [N]."""
    if source.p.split_by == "document":
        return source.in_split(columns.hashes)
    return source.files_in_split(files)[columns.documents["file_id"]]


def _max_damaged(source: Source) -> int:
    return source.p.max_damaged if isinstance(source, Records) else 0


# ---- making it ---------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A document of a file: which it is there, its span, and its text."""

    number: int
    start: int
    extent: int
    read: Read
    size: int


class _Lost(NamedTuple):
    """What cannot be decoded: why, how many bytes, and how many records these are."""

    error: CorruptRecord
    num_bytes: int
    records: int


def _measure(
    files: Sequence[File], source: Source, tokenizer: Tokenizer, progress: Progress
) -> Columns:
    """Reads every file; returns the columns of all splits of documents.

    Raises:
        DataError: for what is damaged, unless the source allows some of that.
    """
    total, done = sum(f.size for f in files), 0
    rows, hashes, cuts = array.array("q"), array.array("Q"), array.array("q")
    content, seen, damage = hashlib.sha256(), set(), Damage()
    for file_id, file in enumerate(files):
        shown = 0
        for found in _documents(file, source):
            if isinstance(found, _Lost):
                damage = _plus(damage, found, source)
                continue
            text_hash = _hash(found, source)
            if source.p.unique:
                if text_hash in seen:
                    continue
                seen.add(text_hash)
            measured = tokenizer.measure(found.read, found.size)
            if measured.tokens:
                span = found.number, found.start, found.extent, found.size
                cut = len(cuts) // 2, len(measured.cuts)
                rows.extend((file_id, *span, measured.tokens, *cut))
                hashes.append(text_hash)
                cuts.extend(itertools.chain.from_iterable(measured.cuts))
            if found.start - shown >= _BLOCK_BYTES:
                shown = found.start
                progress(done + shown, total)
        content.update(f"{len(file.name)} {file.name}".encode(errors="surrogateescape"))
        content.update(file.digest())
        done += file.size
        progress(done, total)
    table = np.array(rows, np.int64).reshape(-1, len(DOCUMENT_COLUMNS))
    return Columns(
        {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(DOCUMENT_COLUMNS)},
        np.array(hashes, np.uint64),
        np.array(cuts, np.int64).reshape(-1, 2),
        content.digest(),
        damage,
    )


def _plus(damage: Damage, lost: _Lost, source: Source) -> Damage:
    """Returns damage and more of it; raises DataError if nobody allowed any."""
    if not _max_damaged(source):
        hint = ""
        if isinstance(source, Records):
            hint = " max_damaged=N of the source leaves out up to N damaged records."
        raise DataError(f"{lost.error}{hint}")
    return damage.plus(str(lost.error), num_bytes=lost.num_bytes, records=lost.records)


def _documents(file: File, source: Source) -> Iterator[_Found | _Lost]:
    """Yields the documents of a file that are not empty, and what of it is damaged."""
    with file.open() as read:
        if not source.checksums:
            refuse_compressed(file, read)
        number = end = 0
        try:
            for number, (start, extent) in enumerate(source.spans(file, read), 1):
                end = start + extent
                found = _document(file, source, read, number, start, extent)
                if isinstance(found, _Lost) or found.size:
                    yield found
        except CorruptRecord as error:
            if not number:  # perhaps no file of such records at all
                refuse_compressed(file, read)
                hint = " max_damaged leaves out records, not files." if _max_damaged(source) else ""
                raise DataError(f"{error}{hint}") from None
            yield _rest(error, file, end, number)


def _document(
    file: File, source: Source, read: Read, number: int, start: int, extent: int
) -> _Found | _Lost:
    if not source.decodes:
        return _Found(number, start, extent, _shift(read, start), extent)
    where = _where(file, source, number, start)
    if extent > _LONGEST_BYTES:
        error = CorruptRecord(f"{where}: {extent:,} bytes are too many for a {source.unit}.")
        return _Lost(error, extent, 1)
    try:
        data = source.document(file, read(start, start + extent), where)
    except CorruptRecord as error:
        return _Lost(error, extent, 1)
    return _Found(number, start, extent, _reader(data), len(data))


def _rest(error: CorruptRecord, file: File, end: int, number: int) -> _Lost:
    """Returns what is lost of a file whose records cannot be found from a byte on.

    It counts as so many records as its bytes would be, so that a limit of one record is not one of
    a whole shard.
    """
    left = file.size - end
    records = max(1, round(left * number / end))
    count = "a record" if records == 1 else f"about {records:,} records"
    said = f"{error} With it go the last {left:,} bytes of the file, {count}."
    return _Lost(CorruptRecord(said), left, records)


def _where(file: File, source: Source, number: int, start: int) -> str:
    return f"{file.path}, {source.unit} {number}, byte {start}"


def _reader(data: bytes) -> Read:
    return lambda begin, end: data[begin:end]


def _shift(read: Read, start: int) -> Read:
    return lambda begin, end: read(start + begin, start + end)


def _hash(found: _Found, source: Source) -> int:
    """Returns the first 8 bytes of the SHA-256 of what identifies a text; 0 where nobody asks."""
    if source.p.split_by == "file" and not source.p.unique:
        return 0
    content, (first, stop) = hashlib.sha256(), source.identity(found.read, found.size)
    for begin in range(first, stop, _BLOCK_BYTES):
        content.update(found.read(begin, min(begin + _BLOCK_BYTES, stop)))
    return int.from_bytes(content.digest()[:8], "big")


def _silent(done: int, total: int) -> None:
    """Shows no progress."""


def _key(files: Sequence[File], source: Source, tokenizer: Tokenizer) -> str:
    """Returns a digest of all that an index depends on."""
    kind = type(source)
    values = {name: repr(getattr(source.p, name)) for name in fields(kind)}
    values.pop("max_damaged", None)  # an index says how much there is
    if source.shares_index:
        del values["split"], values["heldout_fraction"]
    code = [list(sys.version_info[:2]), _own_code(kind)]
    about = [_FORMAT, kind.__module__, kind.__qualname__, code]
    about += [values, tokenizer.describe(), files]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _own_code(kind: type[Source]) -> str | None:
    """Returns the SHA-256 of the file of a class outside lingo, whose changes have no _FORMAT."""
    file = None if kind.__module__.partition(".")[0] == "lingo" else roots.source_file(kind)
    return hashlib.sha256(roots.source(file)).hexdigest() if file else None
