"""The files of a folder as objects of a bucket.

    config.json      one segment, with all bytes
    metrics.jsonl    segments: each has the bytes that were appended since the one before
    checkpoints/step_00000020/...    one segment per file

An object is never written again. A file that has grown gets another segment; earlier segments that
are no longer than the new bytes are merged into it, so a file has about log2 of its size of them.
If earlier bytes of a file have changed, it is sent anew from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.files import (
    StorageError,
    describe_os_error,
    explain_write_errors,
    make_folder,
    open_atomic,
    open_inside,
    sync,
)

OBJECTS = "lingo/objects"
CHECKPOINTS = "checkpoints"
"""The folder whose folders appear and disappear whole."""

_BEGUN = ("config.json", ".lock")  # files of a run, which has a mirror of its own
_THREADS = 4
_PIECE_BYTES = 1 << 22


class Segment(NamedTuple):
    """Some bytes of a file, in an object of their own."""

    name: str  # of the object
    size: int  # in bytes
    sha256: str


Table: TypeAlias = dict[str, tuple[Segment, ...]]
"""path of a file in the folder -> its segments in order; an empty file has none."""

Identity: TypeAlias = tuple[int, int, int]
"""A file's inode, time of change in ns, and size; while they are equal, the content is."""


class OpenFile(NamedTuple):
    """A file at the moment of a snapshot: later it may be replaced, deleted, or grow."""

    file: BinaryIO
    identity: Identity

    @property
    def size(self) -> int:
        """The number of bytes that belong to the snapshot."""
        return self.identity[2]


class Snapshot(NamedTuple):
    """The files of a folder at a moment.

    Logs and texts are held open. A checkpoint may have hundreds of files, which are opened one by
    one when they are sent: they never change, and a deleted one is left out.
    """

    folder: Path
    changed: dict[str, Identity]  # path -> file that is new, or may differ from the last snapshot
    same: set[str]  # paths of files that do not differ
    held: dict[str, BinaryIO]  # the open ones of `changed`

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[OpenFile | None]:
        """Yields a file that has changed, or None if it is another file by now."""
        if path in self.held:
            yield OpenFile(self.held[path], self.changed[path])
            return
        try:
            file = _open(self.folder, path)
        except FileNotFoundError:
            yield None
            return
        with file:
            one = OpenFile(file, _identity(os.fstat(file.fileno())))
            yield one if one.identity == self.changed[path] else None

    def close(self) -> None:
        """Closes the files that are held."""
        for file in self.held.values():
            file.close()


# ---- up ------------------------------------------------------------------------------------------


def checkpoint_names(paths: Collection[str]) -> list[str]:
    """Returns the names of the checkpoints that have some of these files, by increasing step."""
    split = (path.split("/") for path in paths)
    names = {parts[1] for parts in split if parts[0] == CHECKPOINTS and len(parts) > 2}
    return sorted(names, key=lambda name: (len(name), name))


def checkpoint_files(table: Table, name: str) -> Table:
    """Returns the part of a table that has a checkpoint's files."""
    return {path: table[path] for path in table if path.startswith(f"{CHECKPOINTS}/{name}/")}


def local_checkpoints(folder: Path) -> list[str]:
    """Returns the names of a folder's committed checkpoints, by increasing step."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(folder / CHECKPOINTS) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and _is_plain(entry)]
        return sorted(names, key=lambda name: (len(name), name))
    return []


def take_snapshot(
    folder: Path, known: Mapping[str, Identity], *, checkpoints: Collection[str]
) -> Snapshot:
    """Returns the files of a folder, and which have changed since `known`, path -> identity.

    Only `checkpoints` of all checkpoints count. Left out are links, hidden files, damaged
    checkpoints that were set aside, and folders below that are runs. Raises StorageError if a file
    cannot be read.
    """
    snapshot = Snapshot(folder, {}, set(), {})
    for path in _paths(folder, ""):
        parts = path.split("/")
        if parts[0] == CHECKPOINTS and (len(parts) < 3 or parts[1] not in checkpoints):
            continue
        try:
            identity = _identity(os.lstat(folder / path))
            if known.get(path) == identity:
                snapshot.same.add(path)
            elif parts[0] == CHECKPOINTS:
                snapshot.changed[path] = identity
            else:
                snapshot.held[path] = file = _open(folder, path)
                snapshot.changed[path] = _identity(os.fstat(file.fileno()))
        except FileNotFoundError:  # deleted meanwhile
            continue
        except BaseException:
            snapshot.close()
            raise
    return snapshot


def _open(folder: Path, path: str) -> BinaryIO:
    """Opens a file to send it; raises FileNotFoundError or StorageError."""
    try:
        return open_inside(folder / path, "rb", root=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = describe_os_error(error)
        raise StorageError(f"cannot read {folder / path} to upload it: {reason}.") from error


def send(bucket: Bucket, snapshot: Snapshot, table: Table, *, attempt: str) -> Table:
    """Writes the new bytes of a snapshot, and returns the snapshot's table; commits nothing.

    `table` is the last commit's. The names of new objects begin with `attempt`, which no other
    call may have used. Files of checkpoints that were deleted meanwhile are left out. Raises
    BucketError if the bucket fails, or if a file has become shorter.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="upload") as pool:
        sent = {
            path: pool.submit(
                _send_path, bucket, snapshot, path, table.get(path, ()), attempt=attempt
            )
            for path in snapshot.changed
        }
        try:
            fresh = {path: found for path in sent if (found := sent[path].result()) is not None}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {**{path: table[path] for path in snapshot.same if path in table}, **fresh}


def _send_path(
    bucket: Bucket, snapshot: Snapshot, path: str, known: tuple[Segment, ...], *, attempt: str
) -> tuple[Segment, ...] | None:
    """Returns the segments of a snapshot's file, or None if the file was deleted."""
    with snapshot.open(path) as one:
        if one is None:
            return None
        return _send_file(bucket, one, known, f"{OBJECTS}/{attempt}/{path}")


def _send_file(
    bucket: Bucket, one: OpenFile, known: tuple[Segment, ...], name: str
) -> tuple[Segment, ...]:
    kept = _matching_segments(one, known)
    start = sum(segment.size for segment in kept)
    if start == one.size:
        return tuple(kept)
    while kept and kept[-1].size <= one.size - start:
        start -= kept.pop().size
    digest = bucket.upload(name, one.file, start=start, stop=one.size)
    return (*kept, Segment(name, one.size - start, digest))


def _matching_segments(one: OpenFile, known: tuple[Segment, ...]) -> list[Segment]:
    """Returns the first segments whose bytes a file still has."""
    start, kept = 0, list[Segment]()
    for segment in known:
        stop = start + segment.size
        if stop > one.size or _digest(one.file, start, stop) != segment.sha256:
            break
        kept.append(segment)
        start = stop
    return kept


def _digest(file: BinaryIO, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    while start < stop and (
        data := os.pread(file.fileno(), min(_PIECE_BYTES, stop - start), start)
    ):
        digest.update(data)
        start += len(data)
    return digest.hexdigest()


def _paths(folder: Path, inside: str) -> Iterator[str]:
    """Yields the paths of all files that are mirrored, and of all checkpoints' files."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder / inside) as entries:
        for entry in entries:
            path = f"{inside}{entry.name}"
            if not _is_plain(entry) or not path.isprintable():
                continue
            if entry.is_file():
                yield path
            elif not any(os.path.lexists(folder / path / name) for name in _BEGUN):
                yield from _paths(folder, f"{path}/")


def _is_plain(entry: os.DirEntry[str]) -> bool:
    is_hidden = entry.name.startswith(".") or ".corrupt-" in entry.name
    return not is_hidden and not entry.is_symlink() and (entry.is_file() or entry.is_dir())


def _identity(status: os.stat_result) -> Identity:
    return status.st_ino, status.st_mtime_ns, status.st_size


# ---- down ----------------------------------------------------------------------------------------


def restore(bucket: Bucket, table: Table, folder: Path, *, checkpoints: Collection[str]) -> None:
    """Makes a folder's files equal to a table's, but reads only `checkpoints` of its checkpoints.

    Files that the folder has with the right content are not read again, and a checkpoint appears
    whole. Nothing is deleted. Raises MissingObject if a writer has replaced the table meanwhile,
    BucketError if an object is damaged, and StorageError if a file cannot be written.
    """
    for name in checkpoints:
        files = checkpoint_files(table, name)
        if not all(_has(folder / path, segments) for path, segments in files.items()):
            _restore_checkpoint(bucket, files, folder, name)
    others = {path: table[path] for path in table if not path.startswith(f"{CHECKPOINTS}/")}
    missing = [path for path, segments in others.items() if not _has(folder / path, segments)]
    _in_threads(lambda path: restore_file(bucket, table[path], folder / path, folder), missing)


def _restore_checkpoint(bucket: Bucket, files: Table, folder: Path, name: str) -> None:
    partial = folder / CHECKPOINTS / f".tmp-{name}-{uuid.uuid4().hex[:8]}"
    target = folder / CHECKPOINTS / name
    with explain_write_errors(target):
        make_folder(partial, root=folder)
    try:
        _in_threads(
            lambda path: restore_file(bucket, files[path], partial / path.split("/", 2)[2], folder),
            list(files),
        )
        with explain_write_errors(target):
            remove(target)
            partial.rename(target)
            sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def restore_file(bucket: Bucket, segments: tuple[Segment, ...], path: Path, folder: Path) -> None:
    """Writes segments as a file below a folder, which appears whole; raises as `restore` does."""
    with explain_write_errors(path.parent):
        make_folder(path.parent, root=folder)
    with open_atomic(path, root=folder) as file:
        for segment in segments:
            bucket.download(segment.name, file, size=segment.size, sha256=segment.sha256)


def _has(path: Path, segments: tuple[Segment, ...]) -> bool:
    """Returns whether a file has exactly the bytes of segments."""
    try:
        with open(path, "rb") as file:
            one = OpenFile(file, _identity(os.fstat(file.fileno())))
            if path.is_symlink() or one.size != sum(segment.size for segment in segments):
                return False
            return len(_matching_segments(one, segments)) == len(segments)
    except OSError:
        return False


def _in_threads(action: Callable[[str], None], paths: Collection[str]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="download") as pool:
        futures = [pool.submit(action, path) for path in paths]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def delete_others(table: Table, folder: Path, *, checkpoints: Collection[str]) -> None:
    """Deletes the mirrored files of a folder that a table does not have.

    Of its checkpoints, only `checkpoints` stay. Results of `lingo eval` stay: a process that only
    reads a run has written them here.
    """
    for name in {*local_checkpoints(folder)} - {*checkpoints}:
        remove(folder / CHECKPOINTS / name)
    for path in list(_paths(folder, "")):
        if path not in table and not path.startswith((f"{CHECKPOINTS}/", "eval_")):
            with explain_write_errors(folder / path):
                (folder / path).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Deletes a folder, which disappears whole; does nothing if it does not exist."""
    trash = path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}")
    with explain_write_errors(path):
        if path.is_symlink() or path.is_dir():
            path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)


# ---- as JSON -------------------------------------------------------------------------------------


def to_json(table: Table) -> dict[str, list[list[Any]]]:
    """Returns a table as values of JSON."""
    return {path: [list(segment) for segment in table[path]] for path in sorted(table)}


def from_json(content: Any) -> Table:
    """Returns the table of `to_json`; raises BucketError for anything else.

    A commit may come from anywhere, so no path may lead out of the folder.
    """
    if not isinstance(content, Mapping):
        raise BucketError("a commit has no table of files")
    table: Table = {}
    for path, segments in content.items():
        if not (is_path(str(path)) and isinstance(segments, list)):
            raise BucketError(f"a commit names the file {path!r:.200}, which is no file of a run")
        table[path] = tuple(map(_segment, segments))
    return table


def is_path(path: str) -> bool:
    """Returns whether a text is the path of a file in a run, which cannot lead out of it."""
    return path.isprintable() and all(part and not part.startswith(".") for part in path.split("/"))


def _segment(content: Any) -> Segment:
    match content:
        case [str(name), int(size), str(sha256)] if name.startswith(f"{OBJECTS}/") and size >= 0:
            return Segment(name, size, sha256)
        case _:
            raise BucketError(
                f"a commit names the object {content!r:.200}, which is no object of a run"
            )
