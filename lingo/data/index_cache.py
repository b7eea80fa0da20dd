"""Files that keep the columns of an index between runs.

A file begins with the SHA-256 of its remaining bytes, which are arrays as `np.savez` writes them.
A file that is missing, damaged or not writable only costs time. Several processes may read and
write at once, because a file gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lingo.data.files import DataError, open_file

DOCUMENT_COLUMNS = (
    *("file_id", "number", "start", "extent", "size", "units"),
    *("first_cut", "num_cuts"),
)

_DIGEST_BYTES = 32
_WRITING = ".writing-"
_KEPT_BYTES = 10 << 30
_KEPT_SECONDS = 90 * 86400
_WRITING_SECONDS = 86400
_NUM_EXAMPLES = 5


class Damage(NamedTuple):
    """Damaged records of a source that were left out."""

    records: int = 0  # an unreadable rest of a file counts by the mean size of its other records
    num_bytes: int = 0  # bytes of these records in the files
    examples: tuple[str, ...] = ()  # what is wrong with the first few: file, record, byte, reason

    def plus(self, example: str, *, num_bytes: int, records: int = 1) -> Damage:
        """Returns this damage with more damaged records added; `example` describes the first."""
        examples = (*self.examples, example)[:_NUM_EXAMPLES]
        return Damage(self.records + records, self.num_bytes + num_bytes, examples)

    def __str__(self) -> str:
        """Returns the number of records, and a line for each of the first few."""
        count = "1 damaged record" if self.records == 1 else f"{self.records:,} damaged records"
        first = "" if self.records == len(self.examples) else ", the first"
        return "\n  ".join([f"{count} of {self.num_bytes:,} bytes{first}:", *self.examples])


class Columns(NamedTuple):
    """The columns of an index of N documents in F files, of all splits together."""

    documents: dict[str, np.ndarray]  # int64 [N] for each of `DOCUMENT_COLUMNS`, see `Index`
    hashes: np.ndarray  # uint64 [N], the `split_hash` of each text; 0 where not needed
    cuts: np.ndarray  # int64 [C, 2], (bytes, units) before each place where a text may be cut
    is_gzip: np.ndarray  # bool [F], whether each file is compressed
    digest: str  # SHA-256 of the files' names and contents, hexadecimal
    damage: Damage


def cache_folder(name: str) -> Path:
    """Returns the path of lingo's folder `name` in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expanduser(home), "lingo", name)


def cache_file(key: str) -> Path:
    """Returns the path of the index with this key in the user's cache directory."""
    return cache_folder("index") / f"{key}.index"


def load(cache: Path) -> Columns | None:
    """Returns the columns that a file keeps, or None if the file is missing or damaged."""
    try:
        with open_file(str(cache)) as file:
            data = file.read()
    except DataError:
        return None
    content = data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
        return None
    with contextlib.suppress(OSError):
        os.utime(cache)  # marks it as used: `clear_unused` removes the least recently used first
    arrays = dict(np.load(io.BytesIO(content)))
    hashes, cuts, is_gzip = (arrays.pop(name) for name in ("hashes", "cuts", "is_gzip"))
    digest, (records, num_bytes, examples) = json.loads(arrays.pop("about").item())
    damage = Damage(records, num_bytes, tuple(examples))
    return Columns(arrays, hashes, cuts, is_gzip, digest, damage)


def save(cache: Path, columns: Columns) -> None:
    """Writes the columns if possible, and removes files that were not used for a long time."""
    content, about = io.BytesIO(), np.array(json.dumps([columns.digest, columns.damage]))
    arrays: dict[str, Any] = {"hashes": columns.hashes, "cuts": columns.cuts}
    arrays |= {"is_gzip": columns.is_gzip, "about": about}
    arrays |= columns.documents
    np.savez(content, **arrays)
    with contextlib.suppress(OSError):  # the cache saves time, nothing else
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_WRITING, dir=cache.parent)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(content.getbuffer()).digest())
                file.write(content.getbuffer())
            os.replace(name, cache)
        except OSError:
            os.unlink(name)
            raise
        clear_unused(cache.parent, keep=cache, max_bytes=_KEPT_BYTES)


def forget(cache: Path) -> None:
    """Removes the file of an index, so that the next start reads the data anew."""
    with contextlib.suppress(OSError):
        cache.unlink()


def clear_unused(folder: Path, *, keep: Path, max_bytes: float = math.inf) -> None:
    """Removes files unused for 90 days, and the least recently used beyond `max_bytes`.

    A file's modification time says when it was last used. `keep` stays, and so do files that are
    being written.
    """
    now, kept_bytes = time.time(), 0
    files = [(file.stat(), file) for file in folder.iterdir() if file.is_file()]
    for about, file in sorted(files, key=lambda item: item[0].st_mtime, reverse=True):
        idle = now - about.st_mtime
        if file.name.startswith("."):  # being written
            is_stale = idle > _WRITING_SECONDS
        else:
            kept_bytes += about.st_size
            is_stale = file != keep and (idle > _KEPT_SECONDS or kept_bytes > max_bytes)
        if is_stale:
            file.unlink(missing_ok=True)
