"""Files that keep the columns of an index between runs.

A file is a SHA-256 of what follows, a line of JSON, and arrays end to end. A file that is missing,
truncated, damaged, of another format or not writable only costs time. Several processes may read
and write at once: a file is renamed to its place when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lingo.data.damage import Damage
from lingo.data.sources.files import DataError, open_file

DOCUMENT_COLUMNS = (
    *("file_id", "number", "start", "extent", "size", "tokens"),
    *("first_cut", "num_cuts"),
)

_DIGEST_BYTES = 32
_WRITING = ".writing-"
_KEPT_BYTES = 10 << 30
_KEPT_SECONDS = 90 * 86400
_WRITING_SECONDS = 86400


class Columns(NamedTuple):
    """The columns of an index of N documents, those of all splits.

    Attributes:
        documents: int64 [N] for each of `DOCUMENT_COLUMNS`, see `Index`.
        hashes: uint64 [N], the first 8 bytes of the SHA-256 of each text; 0 where not needed.
        cuts: int64 [C, 2], (bytes, tokens) of a text before each place where it may be cut.
        digest: SHA-256 of the files' names and contents.
        damage: damaged records that were left out.
    """

    documents: dict[str, np.ndarray]
    hashes: np.ndarray
    cuts: np.ndarray
    digest: bytes
    damage: Damage


def place(key: str) -> Path:
    """Returns the file for a key in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expanduser(home), "lingo", "index", f"{key}.index")


def load(cache: Path, *, sizes: np.ndarray) -> Columns | None:
    """Returns the columns, or None if the file is missing or not as it was written.

    Args:
        cache: the file.
        sizes: int64 [F], bytes of the files that hold the documents.
    """
    try:
        with open_file(str(cache)) as file:
            data = file.read()
    except DataError:
        return None
    if hashlib.sha256(memoryview(data)[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        return None
    with contextlib.suppress(OSError):
        os.utime(cache)  # marks it as used: `_clear` removes the least recently used first
    columns = _unpack(data)
    return columns if columns is not None and _is_within(columns, sizes) else None


def save(cache: Path, columns: Columns) -> None:
    """Writes the columns if possible, and removes files that were not used for long."""
    data = _pack(columns)
    with contextlib.suppress(OSError):  # the cache saves time, nothing else
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_WRITING, dir=cache.parent)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, cache)
        except OSError:
            os.unlink(name)
            raise
        _clear(cache)


def forget(cache: Path) -> None:
    """Removes the file, so that the next start reads the data anew."""
    with contextlib.suppress(OSError):
        cache.unlink()


def _pack(columns: Columns) -> bytes:
    about = {
        "documents": len(columns.hashes),
        "cuts": len(columns.cuts),
        "digest": columns.digest.hex(),
        "damage": columns.damage,
    }
    arrays = [*(columns.documents[name] for name in DOCUMENT_COLUMNS), columns.hashes, columns.cuts]
    return json.dumps(about).encode() + b"\n" + b"".join(array.tobytes() for array in arrays)


def _unpack(data: bytes) -> Columns | None:
    """Returns the columns in a file's content; allocates no more than the content's size."""
    try:
        begin = data.index(b"\n", _DIGEST_BYTES) + 1
        about = json.loads(data[_DIGEST_BYTES:begin])
        words = np.frombuffer(data[begin:], np.int64)
        num_documents, num_cuts = int(about["documents"]), int(about["cuts"])
        size = num_documents * (len(DOCUMENT_COLUMNS) + 1)
        if min(num_documents, num_cuts) < 0 or len(words) != size + 2 * num_cuts:
            return None
        *documents, hashes = words[:size].reshape(len(DOCUMENT_COLUMNS) + 1, num_documents)
        records, num_bytes, listed = about["damage"]
        return Columns(
            dict(zip(DOCUMENT_COLUMNS, documents, strict=True)),
            hashes.view(np.uint64),
            words[size:].reshape(num_cuts, 2),
            bytes.fromhex(about["digest"]),
            Damage(int(records), int(num_bytes), tuple(map(str, listed))),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_within(columns: Columns, sizes: np.ndarray) -> bool:
    """Returns whether all indices and spans of the columns are within bounds."""
    at = columns.documents
    file_id = at["file_id"]
    if not np.all((file_id >= 0) & (file_id < len(sizes))):
        return False
    return (
        _all_inside(at["start"], at["extent"], sizes[file_id])
        and _all_inside(at["first_cut"], at["num_cuts"], len(columns.cuts))
        and bool(np.all(at["tokens"] > 0))
    )


def _all_inside(start: np.ndarray, size: np.ndarray, end: np.ndarray | int) -> bool:
    inside = (start >= 0) & (start <= end) & (size >= 0) & (size <= end - start)
    return bool(np.all(inside))


def _clear(cache: Path) -> None:
    """Removes files unused for 90 days, and the least recently used beyond 10 GiB."""
    now, kept_bytes = time.time(), 0
    found = [(file.stat(), file) for file in cache.parent.iterdir() if file.is_file()]
    for about, file in sorted(found, key=lambda item: item[0].st_mtime, reverse=True):
        idle = now - about.st_mtime
        if file.name.startswith(_WRITING):
            is_stale = idle > _WRITING_SECONDS
        else:
            kept_bytes += about.st_size
            is_stale = file != cache and (idle > _KEPT_SECONDS or kept_bytes > _KEPT_BYTES)
        if is_stale:
            file.unlink(missing_ok=True)
