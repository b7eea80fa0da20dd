"""The index of a source: where every document is and how many units it has, cached between runs.

Units are the tokens of a text, or the bytes of other data.

Indexing reads all data once; later reads touch only the bytes that they need. Gzip files are read
from unpacked copies (`gzip_copy.py`), so byte positions are positions in the unpacked content. The
user's cache directory keeps the index under a hash of everything that it depends on: the source,
the tokenizer, and the name, size and modification time of every file. Indexing leaves out damaged
records if the source allows it. Later, any damage is an error, so the order of examples is fixed.
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
from lingo.data.files import DataError, File, Read, refuse_compressed
from lingo.data.gzip_copy import is_gzip, unpack
from lingo.data.index_cache import DOCUMENT_COLUMNS, Columns, Damage
from lingo.data.record_source import CorruptRecord, DecodedRecords, RecordSource
from lingo.data.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
"""Called during long work with the bytes done and the total."""

_FORMAT = 9
_BLOCK_BYTES = 1 << 20
_RECENT_BYTES = 1 << 26


class Recent:
    """A least-recently-used cache of decoded texts, up to `max_bytes` in all; thread-safe.

    A long document is thus decoded once for all of its rows, and a source that fits into the cache
    is decoded only once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._texts: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, document: int) -> bytes | None:
        """Returns the text of a document, or None if it is not in the cache."""
        with self._lock:
            if document in self._texts:
                self._texts.move_to_end(document)
            return self._texts.get(document)

    def put(self, document: int, text: bytes, *, displaces: bool = True) -> None:
        """Adds the text of a document, and drops the least recently used texts beyond the limit.

        With `displaces=False`, drops nothing, and adds the text only if there is room.
        """
        with self._lock:
            if not displaces and self._num_bytes + len(text) > self._max_bytes:
                return
            self._num_bytes += len(text) - len(self._texts.get(document, b""))
            self._texts[document] = text
            while self._num_bytes > self._max_bytes:
                _, oldest = self._texts.popitem(last=False)
                self._num_bytes -= len(oldest)


class Index(NamedTuple):
    """The documents of a source, without empty documents (0 units).

    Axes: N documents, F files, C cuts of all documents.
    """

    source: RecordSource
    tokenizer: Tokenizer | None  # units are its tokens; None: units are bytes
    files: Sequence[File]  # [F]
    digest: str  # SHA-256 of the files' names and contents, hexadecimal; equal for copied files
    file_id: np.ndarray  # int64 [N], index of each document's file in `files`
    number: np.ndarray  # int64 [N], number of each document in its file, from 1
    start: np.ndarray  # int64 [N], first byte of the document's span in its file
    extent: np.ndarray  # int64 [N], bytes of the span
    size: np.ndarray  # int64 [N], bytes of the document's text
    units: np.ndarray  # int64 [N], units of the document
    cuts: np.ndarray  # int64 [C, 2], (bytes, units) before each place where a text may be cut
    first_cut: np.ndarray  # int64 [N], index in `cuts` of a document's first cut
    num_cuts: np.ndarray  # int64 [N], number of a document's cuts
    damage: Damage  # damaged records that were left out, in all splits
    recent: Recent  # cache of decoded texts
    cache: Path  # file that keeps the index between runs

    def read(self, document: int, begin: int, end: int) -> bytes:
        """Returns bytes begin, ..., end - 1 of a document's text.

        Raises DataError if the file cannot be read or has changed, or the document is damaged.
        """
        file, start = self.files[self.file_id[document]], int(self.start[document])
        if not self.source.decodes:
            return file.read(start + begin, start + end)
        text = self.recent.get(document)
        if text is None:
            text = self._decode(document, file.read(start, start + int(self.extent[document])))
            self.recent.put(document, text)
        return text[begin:end]

    def texts(self, documents: np.ndarray) -> list[bytes]:
        """Returns the texts of whole documents, int64 [B]; raises DataError as `read` does.

        Each file is opened once, and read from front to back. A full cache keeps its texts, because
        the newest text is not needed again soon if all documents are read in turn.
        """
        texts = {document: self.recent.get(document) for document in documents.tolist()}
        missing = np.array([document for document, text in texts.items() if text is None], int)
        in_order = missing[np.lexsort((self.start[missing], self.file_id[missing]))]
        for file_id, group in itertools.groupby(in_order.tolist(), lambda d: int(self.file_id[d])):
            spans = [(d, int(self.start[d]), int(self.extent[d])) for d in group]
            with self.files[file_id].open() as read:
                data = [(d, read(start, start + extent)) for d, start, extent in spans]
            for document, content in data:
                texts[document] = text = self._decode(document, content)
                self.recent.put(document, text, displaces=False)
        return [text for document in documents.tolist() if (text := texts[document]) is not None]

    def _decode(self, document: int, data: bytes) -> bytes:
        """Returns the text of a whole document from the bytes of its span."""
        file, where = self.files[self.file_id[document]], self.where(document)
        try:
            text = self.source.document(file, data, where)
        except CorruptRecord as error:
            index_cache.forget(self.cache)
            raise DataError(f"{error} It was sound when its index was made.") from None
        if len(text) != (size := int(self.size[document])):
            index_cache.forget(self.cache)
            raise DataError(
                f"{where}: its text has {len(text)} bytes, but had {size} when the index was"
                " made: the code that reads it has changed. Start again to index it anew."
            )
        return text

    def where(self, document: int) -> str:
        """Returns where a document is, for errors: its file, number and first byte."""
        number, start = int(self.number[document]), int(self.start[document])
        return self.source.where(self.files[self.file_id[document]], number, start)

    def encode(self, document: int, begin: int, end: int) -> np.ndarray:
        """Returns tokens begin, ..., end - 1 of a document, int32 [end - begin].

        Raises ValueError for an index without a tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError(f"{self.source.describe()} has no tokens")
        read = functools.partial(self.read, document)
        size = int(self.size[document])
        return self.tokenizer.part(read, size, self._cuts(document), begin, end)

    def bytes_before(self, document: int, token: int) -> int:
        """Returns how many bytes of a document come before one of its tokens, or before its end.

        The number is exact at cuts and for tokens that are bytes; between cuts it is interpolated.
        """
        size, tokens = int(self.size[document]), int(self.units[document])
        cuts = self._cuts(document)
        if not len(cuts):
            return round(size * min(token, tokens) / tokens)
        points = np.concatenate([[(0, 0)], cuts, [(size, tokens)]])
        return round(float(np.interp(token, points[:, 1], points[:, 0])))

    def _cuts(self, document: int) -> np.ndarray:
        first = int(self.first_cut[document])
        return self.cuts[first : first + int(self.num_cuts[document])]


def open_index(
    source: RecordSource, tokenizer: Tokenizer | None = None, *, progress: Progress | None = None
) -> Index:
    """Returns the index of a source, from the cache or by reading all files.

    Units are the tokens of the tokenizer, or bytes without a tokenizer.

    Raises DataError if there is no document, or a file cannot be read or is damaged.
    """
    files = source.files()
    cache = index_cache.cache_file(_key(files, source, tokenizer))
    columns, progress = index_cache.load(cache), progress or (lambda done, total: None)
    if columns is None:
        are_gzip = [is_gzip(file, source) for file in files]
        files = _unpack(files, are_gzip, progress)
        columns = _measure(files, source, tokenizer, progress)
        index_cache.save(cache, columns)
    else:
        files = _unpack(files, columns.is_gzip.tolist(), progress)
    documents, damage = columns.documents, columns.damage
    if damage.records > _max_damaged(source):
        raise DataError(
            f"{source.describe()}: more than max_damaged={_max_damaged(source)}: {damage}"
        )
    if source.shares_index:
        if source.p.split_by == "document":
            is_in_split = source.in_split(columns.hashes)
        else:
            is_in_split = source.files_in_split(files)[documents["file_id"]]
        documents = {name: column[is_in_split] for name, column in documents.items()}
    if not len(documents["units"]):
        raise DataError(f"{source.describe()}: there is no text in the {len(files)} files.")
    return Index(
        source,
        tokenizer,
        files,
        columns.digest,
        cuts=columns.cuts,
        damage=damage,
        recent=Recent(_RECENT_BYTES + int(documents["size"].max())),
        cache=cache,
        **documents,
    )


def _max_damaged(source: RecordSource) -> int:
    return source.p.max_damaged if isinstance(source, DecodedRecords) else 0


def _unpack(files: Sequence[File], are_gzip: Sequence[bool], progress: Progress) -> list[File]:
    """Returns the files; compressed files get an unpacked copy."""
    total = sum(file.size for file, is_packed in zip(files, are_gzip, strict=True) if is_packed)
    plain, done = list[File](), 0

    def advance(num_bytes: int) -> None:
        progress(done + num_bytes, total)

    for file, is_packed in zip(files, are_gzip, strict=True):
        plain.append(unpack(file, progress=advance) if is_packed else file)
        done += file.size if is_packed else 0
    return plain


# ---- indexing ----------------------------------------------------------------------------------


class _Document(NamedTuple):
    """A document of a file: its number, its span, and a reader and the size of its text."""

    number: int
    start: int
    extent: int
    read: Read
    size: int


class _Unreadable(NamedTuple):
    """Bytes that cannot be decoded: the reason, the number of bytes, and the number of records."""

    error: CorruptRecord
    num_bytes: int
    records: int


def _measure(
    files: Sequence[File], source: RecordSource, tokenizer: Tokenizer | None, progress: Progress
) -> Columns:
    total, done = sum(f.size for f in files), 0
    rows, hashes, cuts = array.array("q"), array.array("Q"), array.array("q")
    content, seen, damage = hashlib.sha256(), set(), Damage()
    for file_id, file in enumerate(files):
        shown = 0
        for item in _documents(file, source):
            if isinstance(item, _Unreadable):
                damage = _add_unreadable(damage, item, source)
                continue
            text_hash = _hash(item, source)
            if source.p.unique:
                if text_hash in seen:
                    continue
                seen.add(text_hash)
            units, document_cuts = item.size, ()
            if tokenizer is not None:
                units, document_cuts = tokenizer.measure(item.read, item.size)
            if units:
                span = item.number, item.start, item.extent, item.size
                rows.extend((file_id, *span, units, len(cuts) // 2, len(document_cuts)))
                hashes.append(text_hash)
                cuts.extend(itertools.chain.from_iterable(document_cuts))
            if item.start - shown >= _BLOCK_BYTES:
                shown = item.start
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
        np.array([file.copy is not None for file in files], bool),
        content.hexdigest(),
        damage,
    )


def _add_unreadable(damage: Damage, lost: _Unreadable, source: RecordSource) -> Damage:
    """Returns the damage with `lost` added; raises DataError if the source allows no damage."""
    if not _max_damaged(source):
        hint = ""
        if isinstance(source, DecodedRecords):
            hint = " max_damaged=N of the source leaves out up to N damaged records."
        raise DataError(f"{lost.error}{hint}")
    return damage.plus(str(lost.error), num_bytes=lost.num_bytes, records=lost.records)


def _documents(file: File, source: RecordSource) -> Iterator[_Document | _Unreadable]:
    """Yields the non-empty documents of a file, and its damaged records."""
    with file.open() as read:
        if not source.checksums:
            refuse_compressed(file, read)
        number = end = 0
        try:
            for number, (start, extent) in enumerate(source.spans(file, read), 1):
                end = start + extent
                item = _document(file, source, read, number, start, extent)
                if isinstance(item, _Unreadable) or item.size:
                    yield item
        except CorruptRecord as error:
            if not number:  # perhaps the file has another format
                refuse_compressed(file, read)
                hint = " max_damaged leaves out records, not files." if _max_damaged(source) else ""
                raise DataError(f"{error}{hint}") from None
            yield _rest(error, file, end, number)


def _document(
    file: File, source: RecordSource, read: Read, number: int, start: int, extent: int
) -> _Document | _Unreadable:
    if not source.decodes:
        return _Document(
            number, start, extent, lambda begin, end: read(start + begin, start + end), extent
        )
    where = source.where(file, number, start)
    try:
        if extent > source.longest_bytes:
            raise CorruptRecord(
                f"{where}: the {source.unit} has {extent:,} bytes, more than the limit of"
                f" {source.longest_bytes:,}."
            )
        text = source.document(file, read(start, start + extent), where)
    except CorruptRecord as error:
        return _Unreadable(error, extent, 1)
    return _Document(number, start, extent, lambda begin, end: text[begin:end], len(text))


def _rest(error: CorruptRecord, file: File, end: int, number: int) -> _Unreadable:
    """Returns the unreadable rest of a file, in which no further record can be found."""
    left = file.size - end
    # An estimate by the mean size so far: with `max_damaged=1`, a lost shard must be an error.
    records = max(1, round(left * number / end))
    count = "a record" if records == 1 else f"about {records:,} records"
    message = f"{error} The last {left:,} bytes of the file, {count}, are lost."
    return _Unreadable(CorruptRecord(message), left, records)


def _hash(document: _Document, source: RecordSource) -> int:
    """Returns the `split_hash` of the bytes that identify a text; 0 if no hash is needed."""
    if source.p.split_by == "file" and not source.p.unique:
        return 0
    content = hashlib.sha256()
    for block in source.identity(document.read, document.size):
        content.update(block)
    return int.from_bytes(content.digest()[:8], "big")


def _key(files: Sequence[File], source: RecordSource, tokenizer: Tokenizer | None) -> str:
    """Returns a digest of everything that an index depends on."""
    kind = type(source)
    values = {name: repr(getattr(source.p, name)) for name in fields(kind)}
    values.pop("max_damaged", None)  # the limit is checked after loading
    if source.shares_index:
        del values["split"], values["heldout_fraction"]
    code = [list(sys.version_info[:2]), _own_code(kind)]
    about = [_FORMAT, kind.__module__, kind.__qualname__, code]
    about += [values, tokenizer and tokenizer.describe(), files]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _own_code(kind: type[RecordSource]) -> str | None:
    """Returns the SHA-256 of a user's source file; None for lingo's, which `_FORMAT` covers."""
    file = None if kind.__module__.partition(".")[0] == "lingo" else roots.source_file(kind)
    return hashlib.sha256(roots.source(file)).hexdigest() if file else None
