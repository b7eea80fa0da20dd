"""Results of `lingo eval`, which reach a run in a bucket without the run's lease.

    lingo/results/<time>-<id>/eval_heldout/metrics.jsonl    one row
    lingo/results/<time>-<id>/eval_heldout/events.out...    one evaluation's events for TensorBoard

Only the owner of the lease may commit, and a run in training has it for days. So an evaluation
writes objects that no other process writes. Readers add them to their copies. The process that
trains adds them to its own copy, and deletes them after a commit that includes them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lingo.storage import files
from lingo.storage.bucket.bucket import Bucket, BucketError, MissingObject
from lingo.storage.bucket.table import is_path
from lingo.storage.rows import Row, Rows, parse_rows

RESULTS = "lingo/results"

_ROWS = ".jsonl"
_THREADS = 4

_log = logging.getLogger(__name__)


def send(address: str, results: Mapping[str, bytes]) -> None:
    """Writes results of an evaluation, path in the run -> bytes, as objects of their own.

    A file of rows has only the new ones. Raises BucketError.
    """
    bucket, own = Bucket(address), f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    try:
        for path, data in results.items():
            bucket.put(f"{RESULTS}/{own}/{path}", data)
    except BucketError as error:
        raise BucketError(f"{error}; the results are only in the copy on this machine") from error


def read(bucket: Bucket, *, known: Collection[str] = ()) -> dict[str, bytes]:
    """Returns the results that are in no commit yet, by the names of their objects, oldest first.

    Those with `known` names are left out. A process that reads a commit, too, calls this first:
    the results that the trainer deletes meanwhile are in the commit. Raises BucketError.
    """
    names = [name for name in bucket.names(RESULTS) if name not in known]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="results") as pool:
        found = dict(zip(names, pool.map(lambda name: _read(bucket, name), names), strict=True))
    return {name: data for name, data in found.items() if data is not None}


def _read(bucket: Bucket, name: str) -> bytes | None:
    try:
        return bucket.read(name)
    except MissingObject:
        return None


def add(found: Mapping[str, bytes], folder: Path) -> set[str]:
    """Adds results to a folder that may have them already; returns the names of those it has.

    A row is added unless its step has a row that is as late. A failure to write is a warning.
    """
    there: set[str] = set()
    for name, data in found.items():
        path = name.removeprefix(f"{RESULTS}/").partition("/")[2]
        if not (is_path(path) and path.startswith("eval_") and path.count("/") == 1):
            _log.warning("%s is no result of an evaluation: it is left where it is", name)
            continue
        try:
            if path.endswith(_ROWS):
                _add_rows(folder / path, data, folder)
            else:
                _add_file(folder / path, data, folder)
        except files.StorageError as error:
            _log.warning("%s", error)
        else:
            there.add(name)
    return there


def _add_rows(path: Path, data: bytes, folder: Path) -> None:
    with files.explain_write_errors(path.parent):
        files.make_folder(path.parent, root=folder)
    rows = Rows(path, root=folder)
    last = {row["step"]: _time(row) for row in sorted(rows.read(), key=_time)}
    for row in parse_rows(data.decode(errors="replace")):
        if _time(row) > last.get(row["step"], -1.0):
            rows.append(row)


def _time(row: Row) -> float:
    time = row.get("time")
    return time if isinstance(time, float) else 0.0


def _add_file(path: Path, data: bytes, folder: Path) -> None:
    """Writes a file unless the folder has one of at least this size.

    Evaluations of one process within a second add to one file, so a later result is longer.
    """
    with files.explain_write_errors(path):
        if not path.exists() or path.stat().st_size < len(data):
            files.make_folder(path.parent, root=folder)
            files.write_bytes(path, data, root=folder)
