"""Files in buckets and on web servers, read by ranges and kept on this machine's disk.

    s3://bucket/a.jsonl, version "5413a6", bytes 4 MiB to 8 MiB
        ->  ~/.cache/lingo/data/<SHA-256 of address, size, version and number of the block>

A block that is kept belongs to one version of a file, so it stays right when the file changes.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import hashlib
import io
import json
import math
import os
import time
import uuid
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

from lingo.config.base.errors import ParamError
from lingo.data.index_cache import cache_folder
from lingo.data.store import FILE, FOLDER, DataError, MissingFile, Status
from lingo.storage.bucket import bucket
from lingo.storage.bucket.bucket import Bucket, BucketError, Entry, MissingObject
from lingo.storage.files import StorageError, explain_write_errors

CACHE_GB = "LINGO_DATA_CACHE_GB"
"""The environment variable with the most gigabytes (10**9 bytes) that all blocks may take."""

_DEFAULT_GB, _LEAST_GB = 20.0, 0.1
_BLOCK_BYTES = 1 << 22
_BUFFER_BYTES = 1 << 16
_USE_SECONDS = 60  # the time of a block's last use is this exact
_WRITING, _WRITING_SECONDS = ".writing-", 3600  # older ones were left by killed processes
_MAX_QUESTIONS = 2  # about files of one folder; then it is listed


class RemoteStore:
    """Files in buckets and on web servers, by address; a `lingo.data.store.Store`."""

    versions_tell_content: ClassVar[bool] = True

    def __init__(self) -> None:
        self._listed: dict[str, dict[str, Entry]] = {}
        self._questions = collections.Counter[str]()

    def status(self, path: str) -> Status:
        """Returns what is at an address; raises MissingFile if nothing is there."""
        entry = self._entry(path.rstrip("/"))
        if entry.is_folder:
            return Status(FOLDER, 0, "")
        if entry.size is None or not entry.version:
            raise DataError(
                f"{path} cannot be read: the server tells neither ETag nor Last-Modified, so a"
                " change of the file would be missed: download it, or use another server."
            )
        return Status(FILE, entry.size, entry.version)

    def exists(self, path: str) -> bool:
        """Returns whether a file or folder is at an address."""
        try:
            self._entry(path.rstrip("/"))
        except MissingFile:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder."""
        return [*self._list(folder.rstrip("/"))]

    def folders(self, root: str, top: str) -> Iterator[str]:
        """Yields a folder and all below it."""
        yield top
        listed = self._list(os.path.join(root, top).rstrip("/"))
        for name in sorted(listed):
            if listed[name].is_folder and not name.startswith("."):
                yield from self.folders(root, os.path.join(top, name))

    @contextlib.contextmanager
    def open(self, path: str, status: Status | None = None) -> Iterator[BufferedReader]:
        """Opens a file; each range that is read is checked to be of the version in `status`."""
        listed = self.status(path) if status is None else status
        if listed.kind != FILE:
            raise DataError(f"{path} cannot be read: it is {listed.kind}, not a file.")
        file: BufferedReader = BufferedReader(_Content(path, listed), _BUFFER_BYTES)
        with file:
            yield file

    def _entry(self, path: str) -> Entry:
        folder, _, name = path.rpartition("/")
        is_web = path.startswith(bucket.WEB)  # whose index pages tell no sizes
        self._questions[folder] += 1
        if self._questions[folder] == _MAX_QUESTIONS + 1 and not is_web:
            with contextlib.suppress(DataError):  # not everyone who may read may list
                self._list(folder)
        listed = self._listed.get(folder)
        if listed is not None and name not in listed:
            raise MissingFile(f"{path} cannot be read: there is no such file.")
        entry = None if listed is None else listed[name]
        if entry is not None and (entry.is_folder or entry.size is not None):
            return entry
        return _ask(path)

    def _list(self, folder: str) -> dict[str, Entry]:
        """Returns name -> entry of all that is in a folder."""
        if folder not in self._listed:
            address, name = _split(folder)
            with _explain_errors(folder):
                entries = _bucket(address, os.getpid()).entries(name)
            self._listed[folder] = {entry.name: entry for entry in entries}
        return self._listed[folder]


class _Content(io.RawIOBase):
    """The bytes of one version of a file."""

    def __init__(self, path: str, status: Status) -> None:
        self._path, self._status, self._at = path, status, 0
        self._cache = BlockCache(cache_folder("data"), max_bytes=_max_bytes())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._status.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        number, begin = divmod(self._at, _BLOCK_BYTES)
        size = min(len(buffer), _BLOCK_BYTES - begin, self._status.size - self._at)
        if size <= 0:
            return 0
        data = self._read(number, begin, begin + size)
        buffer[:size] = data
        self._at += size
        return size

    def _read(self, number: int, begin: int, end: int) -> bytes:
        """Returns some bytes of a block, from the disk if it is there."""
        about = json.dumps([self._path, self._status.size, self._status.version, number])
        key = hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()
        start = number * _BLOCK_BYTES
        stop = min(start + _BLOCK_BYTES, self._status.size)
        data = self._cache.read(key, begin, end, size=stop - start)
        if data is None:
            block = _download(self._path, self._status, start, stop)
            self._cache.write(key, block)
            data = block[begin:end]
        return data


def _download(path: str, status: Status, start: int, stop: int) -> bytes:
    """Returns some bytes of a file; raises DataError if they are not of the version in `status`."""
    address, name = _split(path)
    source = _bucket(address, os.getpid())
    with _explain_errors(path):
        data = source.read(name, start, stop)
        now = source.entry(name)
    if (now.size, now.version) != (status.size, status.version):
        raise DataError(
            f"{path} has changed since this run listed its files: it had {status.size:,} bytes and"
            f" version {status.version}, and has {now.size or 0:,} and {now.version}. Start again,"
            " or put the old file back."
        )
    if len(data) != stop - start:
        raise DataError(
            f"{path} has the wrong size: its server tells {status.size:,} bytes, but sends"
            f" {len(data):,} for bytes {start:,} to {stop:,}. Upload it again."
        )
    return data


def _ask(path: str) -> Entry:
    address, name = _split(path)
    with _explain_errors(path):
        return _bucket(address, os.getpid()).entry(name)


@functools.cache
def _bucket(address: str, process: int) -> Bucket:
    """Returns the bucket of an address; a forked process needs another, as threads serve it."""
    del process
    return Bucket(address)


def _split(path: str) -> tuple[str, str]:
    """Returns the address of a bucket or server, and the name of a file or folder in it."""
    scheme, _, rest = path.partition("://")
    if scheme not in bucket.SCHEMES:
        raise DataError(
            f"{path} cannot be read: data are files of this machine, or have addresses that begin"
            " with gs://, s3:// or https://."
        )
    host, _, name = rest.partition("/")
    return f"{scheme}://{host}", name.strip("/")


@contextlib.contextmanager
def _explain_errors(path: str) -> Iterator[None]:
    """Turns errors of buckets and servers into DataError."""
    try:
        yield
    except MissingObject as error:
        raise MissingFile(f"{error}.") from error
    except BucketError as error:
        raise DataError(f"{error}.") from error


# ---- blocks on disk ------------------------------------------------------------------------------


def _max_bytes() -> int:
    """Returns the bound of all blocks together; raises ParamError unless it is a number."""
    text = os.environ.get(CACHE_GB) or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not _LEAST_GB <= gigabytes < math.inf:
        raise ParamError(f"{CACHE_GB}={text!r:.80} is not a number of gigabytes from {_LEAST_GB}")
    return int(gigabytes * 1e9)


class BlockCache:
    """Blocks of files in a folder, which take at most `max_bytes` in all.

    All processes of a machine share the folder. A block gets its name when it is complete. The file
    `.used` has the number of bytes of all blocks, and its lock is held while they change. If a new
    block would exceed the bound, the least recently used blocks are deleted, down to nine tenths.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def read(self, key: str, begin: int, end: int, *, size: int) -> bytes | None:
        """Returns bytes begin, ..., end - 1 of a block; None without a block of `size` bytes."""
        try:
            descriptor = os.open(self._folder / key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # `write` says what is wrong with the folder, if anything is
            return None
        try:
            about = os.fstat(descriptor)
            if about.st_size != size:
                return None
            if time.time() - about.st_mtime > _USE_SECONDS:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)  # the least recently used are deleted first
            return os.pread(descriptor, end - begin, begin)
        finally:
            os.close(descriptor)

    def write(self, key: str, data: bytes) -> None:
        """Keeps a block; raises StorageError if the disk is full."""
        partial = self._folder / f"{_WRITING}{uuid.uuid4().hex}"
        try:
            with explain_write_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                with self._lock() as used:
                    self._make_room(used, len(data))
                    try:
                        partial.write_bytes(data)
                        partial.chmod(0o600)  # the original may be private
                        partial.replace(self._folder / key)
                    finally:
                        partial.unlink(missing_ok=True)
        except StorageError as error:
            raise StorageError(
                f"data from buckets and servers must be kept on disk: {error} Free room there, set"
                f" {CACHE_GB} to less, or XDG_CACHE_HOME to another folder."
            ) from None

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Yields the descriptor of the locked file that counts the bytes."""
        descriptor = os.open(self._folder / ".used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_room(self, used: int, num_bytes: int) -> None:
        """Counts the bytes of a new block, and deletes others if it would exceed the bound.

        Bytes are counted before they are written: if the process is killed, it is too many.
        """
        text = os.pread(used, 32, 0)
        total = int(text) if text.isdigit() else None
        if total is None or total + num_bytes > self._max_bytes:
            total = self._delete_oldest(self._max_bytes - num_bytes)
        os.pwrite(used, b"%032d" % (total + num_bytes), 0)

    def _delete_oldest(self, max_bytes: int) -> int:
        """Deletes the least recently used if all take more than `max_bytes`; returns what stays."""
        files, total, now = list[tuple[float, int, str]](), 0, time.time()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_WRITING) and now - about.st_mtime > _WRITING_SECONDS:
                    os.unlink(entry.path)
                elif entry.name != ".used":
                    files.append((about.st_mtime, about.st_size, entry.path))
                    total += about.st_size
        if total <= max_bytes:
            return total
        for _, size, path in sorted(files):
            if total <= 0.9 * max_bytes:
                break
            os.unlink(path)
            total -= size
        return total
