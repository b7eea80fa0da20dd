"""Crash-safe writing of files, complete and durable or not at all, and a lock for a directory.

Nothing is written through links, which may lead out of the directory of a run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

from lingo.config.base import regular_file
from lingo.config.base.errors import LingoError, ParamError

PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The pattern that a name must match before it becomes part of a path."""

_FRESH = ".tmp-"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash, as `Path` makes "/" of "//"
_NODE = re.compile(r"\{\{.*?\}\}|\[Op:.*?\]")  # the graph node in TensorFlow's messages


class StorageError(LingoError):
    """A file could not be written: the disk is full or read-only, or permission is missing."""

    exit_code: ClassVar[int] = 10


def refuse_address(path: str | Path) -> None:
    """Raises ParamError for an address such as s3://bucket/run instead of a path."""
    if _ADDRESS.match(str(path)):
        raise ParamError(
            f"{str(path)!r:.200} is an address, but lingo reads and writes files of this machine"
            " here; only runs and data may be in buckets, at gs:// or s3://. Mount the bucket"
            " (gcsfuse, mountpoint-s3, hdfs-fuse) and give the path of the mount"
        )


def storage_error(path: Path, error: Exception, *, needs_bytes: int = 0) -> StorageError:
    """Returns the error for a write that failed with an OSError or TensorFlow's OpError."""
    if isinstance(error, LinkError):
        return StorageError(f"cannot write {path}: {error.strerror}.")
    needs = f", {needs_bytes:,} bytes needed" if needs_bytes else ""
    return StorageError(f"cannot write {path}: {describe_os_error(error)} ({_free(path)}{needs}).")


def describe_os_error(error: Exception) -> str:
    """Returns the reason of an OSError, or TensorFlow's OpError, in one line.

    An OpError keeps only the system's reason, without temporary files and advice to programmers.
    """
    if strerror := getattr(error, "strerror", None):
        return " ".join(strerror.split())
    text = getattr(error, "message", None) or str(error)
    if "OOM when" in text:
        return "out of memory"
    reasons = [reason for code in errno.errorcode if (reason := os.strerror(code)) in text]
    return max(reasons, key=len, default=" ".join(_NODE.sub("", text).split()))


def _free(path: Path) -> str:
    """Returns, in words, the free space of the disk where a path is, or would be."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):  # the path does not exist, or may not be read
            disk = os.statvfs(place)
            full = ", no inode is free" if disk.f_files and not disk.f_favail else ""
            return f"{disk.f_frsize * disk.f_bavail:,} bytes free{full}"
    return "nothing is known of the disk"


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError inside into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def write_text(path: Path, text: str, *, root: Path | None = None) -> None:
    """Writes a text in UTF-8 by `write_bytes`."""
    write_bytes(path, text.encode(), root=root)


def write_bytes(path: Path, data: bytes, *, root: Path | None = None) -> None:
    """Writes a small file atomically: even after a crash it has either the old or the new content.

    `root` is as for `open_folder`; a link at the path itself is replaced. Raises StorageError if
    the file cannot be written; the old file stays.
    """
    with open_atomic(path, root=root) as file, explain_write_errors(path):
        file.write(data)


@contextlib.contextmanager
def open_atomic(path: Path, *, root: Path | None = None) -> Iterator[BinaryIO]:
    """Yields a new file, which replaces the file at `path` after the body, but not after an error.

    `root` is as for `open_folder`; a link at the path itself is replaced. Raises StorageError if
    the file cannot be made or completed; an error in the body is raised as it is.
    """
    fresh = f"{_FRESH}{path.name}-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        with explain_write_errors(path):
            folder = stack.enter_context(open_folder(path.parent, root=root))
            file = open(fresh, "wb", opener=functools.partial(_open, folder=folder))  # noqa: SIM115
        try:
            yield file
            with explain_write_errors(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            for clean in (file.close, functools.partial(os.unlink, fresh, dir_fd=folder)):
                with contextlib.suppress(OSError):  # the first error is the one to report
                    clean()
            raise
        with explain_write_errors(path):
            os.fsync(folder)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder, which gets its name when it is complete; an error leaves nothing.

    A partial folder that a killed process left is deleted. Raises ParamError if the path exists,
    StorageError if the folder cannot be written.
    """
    if os.path.lexists(path):
        raise ParamError(f"{path} exists: name another folder, or remove it")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_write_errors(path):
        _clear_partial_folders(path)
        partial.mkdir()
        try:
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(OSError):  # without locks, leftovers stay for ever
                    stack.enter_context(_locked_folder(partial))
                yield partial
                partial.rename(path)
            sync(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _clear_partial_folders(path: Path) -> None:
    """Deletes partial folders of killed processes; a living process holds its folder's lock."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+")
    for other in path.parent.iterdir():
        if name.fullmatch(other.name) and other.is_dir():
            with contextlib.suppress(OSError), _locked_folder(other):
                shutil.rmtree(other)


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Holds a folder's lock; raises OSError if another process holds it, or there are no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def clear_leftovers(folder: Path) -> None:
    """Deletes temporary files that a killed process left; the caller holds the folder's lock."""
    for path in folder.glob(f"{_FRESH}*"):
        if not path.is_dir():
            with explain_write_errors(path):
                path.unlink(missing_ok=True)


def append(path: Path, data: bytes, *, start: bytes = b"", root: Path | None = None) -> None:
    """Appends bytes to a file, all of them or none; a new file begins with `start`.

    `root` is as for `open_folder`. Raises StorageError if the file cannot be written; the file is
    then unchanged.
    """
    with (
        explain_write_errors(path),
        open_inside(path, "ab", root=root, buffering=0) as file,
    ):
        end = file.tell()
        data = data if end else start + data
        try:
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            file.truncate(end)  # else the next append would follow a part of this one
            raise


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a directory, are on the disk (`fsync`)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- without links -------------------------------------------------------------------------------


class LinkError(OSError):
    """A link stands where a real file or directory has to be."""

    def __init__(self) -> None:
        reason = "it is a link, and nothing is written through links: replace it by its target"
        super().__init__(errno.ELOOP, reason)


def refuse_link(path: Path) -> None:
    """Raises StorageError if a path is a link."""
    if path.is_symlink():
        raise storage_error(path, LinkError())


@contextlib.contextmanager
def open_folder(path: Path, *, root: Path | None = None, make: bool = False) -> Iterator[int]:
    """Yields the descriptor of a directory, which serves as `dir_fd` to open names in it.

    Args:
        path: the path of the directory.
        root: a directory above; no part of the path below it may be a link. None: `path` itself.
        make: whether to make the missing directories below the root.

    Raises OSError, which is a LinkError if a part of the path is a link.
    """
    root = path if root is None else root
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to(root).parts:
            if make:
                _make_folder(name, folder)
            inner = _open(name, os.O_RDONLY | os.O_DIRECTORY, folder=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def make_folder(path: Path, *, root: Path) -> None:
    """Makes a directory and its parents below `root`.

    Raises OSError, which is a LinkError if one of these directories is a link.
    """
    with open_folder(path, root=root, make=True):
        pass


def open_inside(
    path: Path, mode: str, *, root: Path | None = None, buffering: int = -1
) -> BinaryIO:
    """Opens a regular file in a binary mode; `root` and errors are as for `open_folder`."""

    def opener(path_text: str, flags: int) -> int:
        del path_text
        with open_folder(path.parent, root=root) as folder:
            descriptor = _open(path.name, flags, folder=folder)
        try:
            regular_file.check(os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    return cast(BinaryIO, open(path, mode, buffering=buffering, opener=opener))


def _open(name: str, flags: int, *, folder: int) -> int:
    """Opens a name in a directory, without waiting for a pipe; raises LinkError for a link."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags, 0o666, dir_fd=folder)
    except OSError as error:  # a link gives ENOTDIR if a directory is asked for
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, folder):
            raise LinkError from None
        raise


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _make_folder(name: str, parent: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        os.fsync(parent)


# ---- the lock ------------------------------------------------------------------------------------


class DirectoryLocked(LingoError):
    """Another process writes into the directory."""

    exit_code: ClassVar[int] = 6


class Lock:
    """An exclusive `flock` on a file that names its holder.

    The system releases the lock when the process ends, however that happens. A forked child would
    keep the lock, so a child closes the file at once.
    """

    def __init__(self, path: Path) -> None:
        """Neither takes the lock yet nor touches its file, which is at `path`."""
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises DirectoryLocked, naming the holder, if another process has it, and StorageError if
        the file cannot be written.
        """
        with explain_write_errors(self.path):
            while self._descriptor is None:
                self._try()
            os.register_at_fork(after_in_child=self._drop)
            since = time.strftime("%Y-%m-%d %H:%M:%S%z")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            try:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(holder).encode(), 0)
            except OSError:
                self.release(remove=True)
                raise

    def release(self, *, remove: bool = False) -> None:
        """Releases the lock; `remove` deletes its file."""
        if remove and not self.is_lost:
            self.path.unlink(missing_ok=True)
        self._drop()

    @property
    def is_lost(self) -> bool:
        """Whether the lock's file was removed or replaced: another process may lock a new one."""
        return self._descriptor is not None and not self._is_of(self._descriptor)

    def is_taken(self) -> bool:
        """Returns whether a process has the lock, and writes nothing.

        The caller keeps away processes that want it meanwhile: they would find it taken.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_abandoned(self) -> bool:
        """Returns whether the holder that the file names has ended; False if it is not known.

        It does not take the lock for a moment to find out: a process might want it at that moment.
        """
        try:
            holder = json.loads(self.path.read_bytes())
            pid, is_here = int(holder["pid"]), holder["host"] == socket.gethostname()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False
        return is_here and not Path(f"/proc/{pid}").exists()

    def _try(self) -> None:
        # O_NOFOLLOW: a link may lead to another file, which would be overwritten.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o644)
        try:
            regular_file.check(os.fstat(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_of(descriptor):
                self._descriptor, descriptor = descriptor, None
        except BlockingIOError:
            raise DirectoryLocked(self._who(descriptor)) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _is_of(self, descriptor: int) -> bool:
        """Returns whether the path still names the open file, which a holder may have removed."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _who(self, descriptor: int) -> str:
        text = os.pread(descriptor, 4096, 0).decode(errors="replace")
        try:
            holder = json.loads(text)
            who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        return f"{self.path.parent} is in use: {who}. Wait for it, or use another directory."

    def _drop(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
