"""The objects below an address, by fsspec: gs:// by gcsfs, s3:// by s3fs, https:// by `web.py`.

Every call may be repeated without harm, so a call that fails by the network or the server is
repeated: after a random pause below a limit that doubles from try to try (exponential backoff with
full jitter), for `PATIENCE_SECONDS` in all. `put_if_absent` is the only call that decides anything
between two writers. It compares the bytes after a failure that may have been a success.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, TypeVar

from lingo.config.base.errors import check_package
from lingo.storage import injection
from lingo.storage.files import StorageError

PATIENCE_SECONDS = 120.0
"""How long a failing call is repeated; the last try may take `_SECONDS_PER_TRY` more."""

_SECONDS_PER_TRY = 60
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 10.0
_PIECE_BYTES = 32 << 20  # larger objects are sent in parts, and read in pieces

_EXTRAS = {
    "gs": ("gcsfs", "gcs"),
    "s3": ("s3fs", "s3"),
    "https": ("aiohttp", "https"),
    "http": ("aiohttp", "https"),
    "memory": ("fsspec", "s3"),
}
SCHEMES = tuple(_EXTRAS)
"""The schemes of addresses that can be read; memory: objects of this process, for tests."""

WEB = ("https", "http")
"""The schemes of web servers, which are only read."""

_FINAL = (FileNotFoundError, PermissionError, FileExistsError, NotImplementedError, TypeError)
_FINAL_ERRNO = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EMSGSIZE, errno.ENAMETOOLONG)
_CREDENTIALS = (
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshError",
)
_UNMET = ("PreconditionFailed", "412")
_VERSIONS = ("ETag", "md5Hash", "crc32c", "etag", "Last-Modified", "created")

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class BucketError(StorageError):
    """A bucket cannot be read or written: it is missing, forbidden, or does not answer."""


class MissingObject(BucketError):
    """An object is not there, or its bucket is not."""


class Entry(NamedTuple):
    """An object or a folder, as a bucket or a web server describes it."""

    name: str  # without the folder it is in
    is_folder: bool
    size: int | None  # bytes; None: not told, as in the index pages of web servers
    version: str  # changes whenever the content does, such as the ETag; "" if not told


class Bucket:
    """The objects below an address. Names are relative to the address, with slashes inside."""

    def __init__(self, address: str, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Asks the network nothing yet. Raises MissingPackage without the scheme's package."""
        self.address = address.rstrip("/")
        scheme, _, self._root = self.address.partition("://")
        package, extra = _EXTRAS[scheme]
        check_package(package, f"{scheme}://", extra=extra)
        self._scheme, self._patience = scheme, patience_seconds
        self._files: Any = _open_file_system(scheme)

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of all objects below a folder, in order; [] without objects.

        Raises BucketError.
        """
        path = self._path(folder) if folder else self._root
        try:
            found: list[str] = self._call("list", folder, lambda: self._files.find(path))
        except MissingObject:
            return []
        root = self._root.strip("/") + "/"
        names = (name.lstrip("/") for name in found)
        return sorted(name.removeprefix(root) for name in names if name.startswith(root))

    def entries(self, folder: str = "") -> list[Entry]:
        """Returns what is directly in a folder, in any order; raises MissingObject, BucketError."""
        path = self._path(folder) if folder else self._root
        found = self._call("list", folder, lambda: self._files.ls(path, detail=True))
        # An object with the folder's own name only marks that there is a folder.
        own = path.strip("/")
        return [_entry(about) for about in found if about["name"].strip("/") != own]

    def entry(self, name: str = "") -> Entry:
        """Returns an object or a folder; raises MissingObject, BucketError."""
        path = self._path(name) if name else self._root
        return _entry(self._call("read", name, lambda: self._files.info(path)))

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Returns an object's bytes from `start` to `stop`; raises MissingObject."""
        path = self._path(name)
        return self._call("read", name, lambda: self._files.cat_file(path, start=start, end=stop))

    def put(self, name: str, data: bytes) -> None:
        """Writes an object, whole: a reader gets the old content or the new. Raises BucketError."""
        path = self._path(name)
        injection.count_upload()
        self._call("write", name, lambda: self._files.pipe_file(path, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Writes an object unless there is one; returns whether this call has written it.

        Of several writers at the same time exactly one gets True, if no two write equal bytes.
        """
        injection.count_upload()
        if self._call("write", name, lambda: self._create(self._path(name), data)):
            return True
        # An earlier try may have written the object, although the answer got lost.
        return self.read(name) == data

    def _create(self, path: str, data: bytes) -> bool:
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:  # s3fs knows the answer by a field that some servers leave out
            response = getattr(error.__cause__, "response", None) or {}
            if response.get("Error", {}).get("Code") in _UNMET:
                return False
            raise
        return True

    def upload(self, name: str, file: BinaryIO, *, start: int, stop: int) -> str:
        """Writes the bytes from `start` to `stop` of a file as an object; returns their SHA-256.

        Only `stop - start` bytes up to 32 MiB are in memory. Raises BucketError if the file has
        become shorter.
        """
        digest = hashlib.sha256()
        if stop - start <= _PIECE_BYTES:
            data = _read_piece(file, start, stop)
            digest.update(data)
            self.put(name, data)
            return digest.hexdigest()
        injection.count_upload()
        return self._call("write", name, lambda: self._send(self._path(name), file, start, stop))

    def _send(self, path: str, file: BinaryIO, start: int, stop: int) -> str:
        digest = hashlib.sha256()
        with self._files.open(path, "wb", block_size=_PIECE_BYTES) as remote:
            for begin in range(start, stop, _PIECE_BYTES):
                data = _read_piece(file, begin, min(begin + _PIECE_BYTES, stop))
                digest.update(data)
                remote.write(data)
        if (size := int(self._files.info(path)["size"])) != stop - start:
            raise ConnectionError(f"{size} bytes have arrived of {stop - start}")
        return digest.hexdigest()

    def download(self, name: str, file: BinaryIO, *, size: int, sha256: str) -> None:
        """Appends an object to a file. Raises BucketError if its bytes have changed."""
        digest, length = hashlib.sha256(), 0
        for start in range(0, size, _PIECE_BYTES):
            data = self.read(name, start, min(start + _PIECE_BYTES, size))
            digest.update(data)
            length += len(data)
            file.write(data)
        if length != size or digest.hexdigest() != sha256:
            raise BucketError(f"{self.address}/{name} is damaged: its bytes have changed")

    def delete(self, name: str) -> None:
        """Deletes an object; does nothing if it does not exist. Raises BucketError."""
        path = self._path(name)
        injection.count_upload()
        try:
            self._call("delete", name, lambda: self._files.rm_file(path))
        except MissingObject:
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    # ---- tries and errors

    def _call(self, verb: str, name: str, action: Callable[[], _T]) -> _T:
        """Calls an action until it succeeds, fails for good, or the patience is over.

        Raises BucketError, which says what to do, for any error of the action.
        """
        deadline, pause, tries = time.monotonic() + self._patience, _FIRST_PAUSE_SECONDS, 0
        while True:
            tries += 1
            try:
                return action()
            except BucketError:  # the action's own, such as of a file that has become shorter
                raise
            except Exception as error:  # the packages' errors have no common class
                wait = random.uniform(0, pause)
                if not _is_passing(error) or time.monotonic() + wait > deadline:
                    raise self._error(verb, name, error, tries) from error
                _log.debug("%s/%s: try %d: %s", self.address, name, tries, error)
            time.sleep(wait)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _error(self, verb: str, name: str, error: Exception, tries: int) -> BucketError:
        where = f"{self.address}/{name}".rstrip("/")
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        bucket = f"{self._scheme}://{self._root.split('/')[0]}"
        if isinstance(error, FileNotFoundError):
            if self._scheme in WEB:
                return MissingObject(f"cannot {verb} {where}: the server has no such file")
            there = f"it is not there, or there is no bucket {bucket}: make the bucket first"
            return MissingObject(f"cannot {verb} {where}: {there} ({reason})")
        if isinstance(error, PermissionError) and self._scheme in WEB:
            advice = "the server allows it only to those who are logged in, or to nobody"
        elif isinstance(error, PermissionError):
            advice = f"these credentials may not {verb} in {bucket}, or are wrong"
        elif type(error).__name__ in _CREDENTIALS or getattr(error, "code", 0) == 401:
            advice = "no credentials were found: " + {
                "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                "gs": "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS",
            }.get(self._scheme, "the scheme has none")
        elif _is_passing(error):
            advice = f"it has failed {tries} times in {self._patience:.0f} s: is the network up?"
        else:
            advice = "the server has refused it"
        return BucketError(f"cannot {verb} {where}: {advice} ({reason})")


def _open_file_system(scheme: str) -> Any:
    """Returns fsspec's file system: no cached listings, no retries of its own, limited tries."""
    if scheme in WEB:
        check_package("fsspec", f"{scheme}://", extra="https")
        from lingo.storage.bucket.web import WebFiles

        return WebFiles(scheme, seconds=_SECONDS_PER_TRY)
    import fsspec

    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if scheme == "s3":
        once = {"total_max_attempts": 1}
        seconds = {"connect_timeout": 10, "read_timeout": _SECONDS_PER_TRY}
        options["config_kwargs"] = {"retries": once, **seconds, "max_pool_connections": 32}
    if scheme == "gs":
        options["requests_timeout"] = _SECONDS_PER_TRY
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            options["token"] = "anon"  # an emulator asks for no credentials
    files: Any = fsspec.filesystem(scheme, **options)
    if scheme == "s3":
        files.retries = 1
    return files


def _entry(about: dict[str, Any]) -> Entry:
    """Returns an entry from what fsspec tells about it."""
    name, is_folder = about["name"].rstrip("/").rpartition("/")[2], about["type"] == "directory"
    version = next((about[key] for key in _VERSIONS if about.get(key)), "")
    if isinstance(version, datetime.datetime):  # the time of an object in memory has two forms
        version = version.timestamp()
    size = about["size"]
    return Entry(name, is_folder, None if size is None else int(size), str(version))


def _is_passing(error: Exception) -> bool:
    """Returns whether a call that failed may succeed later."""
    code = getattr(error, "code", None)  # of gcsfs's HttpError
    if isinstance(code, int | str) and str(code).isdigit():
        return int(code) in (408, 429) or int(code) >= 500
    if isinstance(error, _FINAL) or type(error).__name__ in _CREDENTIALS:
        return False
    return not (isinstance(error, OSError) and error.errno in _FINAL_ERRNO)


def _read_piece(file: BinaryIO, start: int, stop: int) -> bytes:
    """Returns the bytes of a file from `start` to `stop`; other threads may read it, too."""
    data = os.pread(file.fileno(), stop - start, start)
    if len(data) != stop - start:
        raise BucketError(f"{file.name} has become shorter while it was read")
    return data
