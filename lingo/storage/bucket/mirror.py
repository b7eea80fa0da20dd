"""The mirror of a local folder in a bucket.

    mirror = Mirror(folder, "s3://bucket/run")
    mirror.open()                 # takes the lease; makes the folder equal to the last commit
    mirror.upload()               # commits the folder as it is now, in a thread
    mirror.check()                # raises the thread's error, and says if the lease is lost
    mirror.close(is_sound=True)   # commits the end, and releases the lease

A folder whose last commit is still the bucket's last has gone on since then, and stays as it is:
steps that were saved here and not uploaded are not lost. A folder that another process has
overtaken is made equal to the bucket.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

from lingo.config.base.errors import LingoError, ParamError
from lingo.storage import files
from lingo.storage.bucket import cache, commit, results, table
from lingo.storage.bucket.bucket import Bucket, MissingObject
from lingo.storage.bucket.commit import Commit, OvertakenError
from lingo.storage.bucket.lease import Lease, process_names
from lingo.storage.bucket.table import Identity, Segment, Snapshot, Table

STATE = ".mirror.json"

_PULLING = ".pulling"
_TRIES = 10

_log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """Which checkpoints a bucket has; the folder's newest one is always among them."""

    latest: int | None = None  # number of uploaded checkpoints that stay; None: all
    pinned: Collection[str] = ()  # names of checkpoints that are uploaded, and stay, in any case


Check: TypeAlias = Callable[[Path, Mapping[str, tuple[int, str]]], bool]
"""Returns whether files, name -> (size in bytes, SHA-256), are all of the checkpoint at a path."""


class _State(NamedTuple):
    """The commits that a folder continues."""

    id: str = ""  # of the last commit that has surely succeeded; "": there was no commit
    pending: tuple[str, ...] = ()  # ids of later commits that were begun, and may have succeeded

    def is_last(self, last: Commit) -> bool:
        """Returns whether the folder continues the commit."""
        return last.id in (self.id, *self.pending)


class Mirror:
    """Writes a folder to a bucket, as the only process that may.

    Attributes:
        kept: which checkpoints the bucket has after the next upload.
        uploads: the number of commits.
        parts: files of checkpoints that processes without this disk have sent themselves.
        sending: the names of checkpoints that an upload in progress reads, so they must stay here.
    """

    def __init__(self, folder: Path, address: str, *, check: Check | None = None) -> None:
        """Asks the network nothing yet. Checkpoints that `check` refuses are not uploaded."""
        self.folder, self.address, self._check = folder, address, check
        self.kept, self.uploads = Kept(), 0
        self.parts: Table = {}
        self.sending: Collection[str] = ()
        self._bucket = Bucket(address)
        self._lease = Lease(self._bucket)
        self._last: Commit | None = None
        self._known: dict[str, Identity] = {}  # path -> the file's identity in the last commit
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mirror")
        self._pending: Future[None] | None = None
        self._begun: list[str] = []  # ids of commits since the last that has surely succeeded
        self._taken: set[str] = set()  # names of results that the folder has, and no commit yet

    def open(self) -> None:
        """Takes the lease, brings the folder up to date, and deletes what killed processes left.

        Raises DirectoryLocked if another process has the lease, BucketError if the bucket fails.
        """
        self._lease.take()
        try:
            for _ in range(_TRIES):
                with contextlib.suppress(OvertakenError):  # by the end of another's upload
                    self._last = bring_down(self._bucket, self.folder)
                    self.take_results()
                    self._sweep()
                    return
            raise files.StorageError(f"{self.address} changes faster than it is read")
        except BaseException:
            self._lease.release()
            raise

    def _sweep(self) -> None:
        """Deletes what killed processes left, and shuts out processes that only sleep."""
        garbage = commit.find_garbage(self._bucket, self._last)
        if garbage or self._lease.has_overtaken:
            before = self._last
            self._add(commit.next_commit(before, before.table if before else {}))
            for name in garbage:
                self._bucket.delete(name)
            if before is not None:
                self._bucket.delete(commit.name_of(commit.COMMITS, before.number))

    # ---- up

    @property
    def is_busy(self) -> bool:
        """Whether an upload is in progress."""
        return self._pending is not None and not self._pending.done()

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoints in the bucket, by increasing step."""
        last = self._last  # the thread may replace it
        return table.checkpoint_names(last.table) if last else []

    def upload(self) -> None:
        """Begins to commit the folder as it is now; waits for an upload in progress first.

        Raises as `check` does, and StorageError if a file cannot be read.
        """
        self.wait()
        self.check()
        names, snapshot = self._take_snapshot(self.kept)
        self.sending = table.checkpoint_names(snapshot.changed)
        self._pending = self._thread.submit(self._run_upload, snapshot, names)

    def take_results(self) -> None:
        """Adds the results that `lingo eval` has sent to the folder; the next upload commits them.

        Every upload does it, too, for the upload after it. Waits for an upload in progress. Raises
        BucketError.
        """
        self.wait()
        self._take_results()

    def _take_results(self) -> None:
        self._taken |= results.add(results.read(self._bucket, known=self._taken), self.folder)

    def check(self) -> None:
        """Raises the error of an upload that has failed, and DirectoryLocked for a lost lease."""
        self._lease.check()
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Waits until no upload is in progress; raises the error of a failed one."""
        if self._pending is not None:
            future, self._pending = self._pending, None
            future.result()

    def close(self, *, is_sound: bool) -> None:
        """Commits the folder's last state, unless the lease is lost, and releases the lease.

        If not `is_sound`, an error ends the run already, and a second one is only logged.
        """
        try:
            if is_sound:
                self.upload()
                self.wait()
            else:
                self._upload_rest()
        finally:
            self._thread.shutdown()
            self._lease.release()

    def _upload_rest(self) -> None:
        with contextlib.suppress(LingoError):  # this error, or its cause, ends the run
            self.wait()
        try:
            self.upload()
            self.wait()
        except LingoError as error:
            _log.error("the end of the run is only in %s: %s", self.folder, error)

    def _take_snapshot(self, kept: Kept) -> tuple[list[str], Snapshot]:
        """Returns the names of checkpoints to keep in the bucket, and the files to have there."""
        for _ in range(_TRIES):
            there = table.local_checkpoints(self.folder)
            chosen, stay = _choose(there, self.checkpoints, kept)
            snapshot = table.take_snapshot(self.folder, self._known, checkpoints=chosen)
            # Checkpoints are written and deleted in another thread, perhaps just now.
            if chosen <= {*table.local_checkpoints(self.folder)}:
                return sorted({*chosen, *stay}, key=_order), snapshot
            snapshot.close()
        raise files.StorageError(f"{self.folder} changes faster than it is read")

    def _run_upload(self, snapshot: Snapshot, names: Collection[str]) -> None:
        """Commits a snapshot, and takes the results that have come since the last upload."""
        taken = {*self._taken}  # before the snapshot
        self._commit(snapshot, names)
        for name in sorted(taken):
            self._bucket.delete(name)
        self._taken -= taken
        self._take_results()

    def _commit(self, snapshot: Snapshot, names: Collection[str]) -> None:
        try:
            before, last = self._last.table if self._last else {}, self._last
            parts, attempt = dict(self.parts), uuid.uuid4().hex
            content = table.send(self._bucket, snapshot, before | parts, attempt=attempt)
            for name in table.checkpoint_names(content):
                content = table.checkpoint_files(parts, name) | content
            dropped = self._drop_damaged(content, before)
            for path in before.keys() - content.keys():  # deleted here, but kept there
                if table.checkpoint_names([path])[:1] and path.split("/")[1] in names:
                    content[path] = before[path]
            if content and content != before:
                self._replace(last, commit.next_commit(last, content))
            for name in dropped:
                self._bucket.delete(name)
            same = {path: self._known[path] for path in snapshot.same}
            self._known = same | snapshot.changed
        finally:
            self.sending = ()
            snapshot.close()

    def _drop_damaged(self, content: Table, before: Table) -> set[str]:
        """Takes checkpoints that have changed, and are not whole, out of a table.

        A checkpoint that was saved again after a rewind is whole, and replaces the bucket's.
        Returns the names of the new objects that nothing needs now.
        """
        dropped: Table = {}
        for name in table.checkpoint_names(content):
            own = table.checkpoint_files(content, name)
            if self._check is None or own.items() <= before.items():
                continue
            path = self.folder / table.CHECKPOINTS / name
            if not self._check(path, {file.rpartition("/")[2]: _seal(own[file]) for file in own}):
                _log.warning("%s is damaged, or was deleted, and is not uploaded", path)
                dropped |= {file: content.pop(file) for file in own}
        return commit.objects(dropped) - commit.objects(before)

    def _replace(self, last: Commit | None, new: Commit) -> None:
        self._lease.check()
        self._add(new)
        self.uploads += 1
        if last is not None:
            commit.delete_replaced(self._bucket, last, new)

    def _add(self, new: Commit) -> None:
        """Makes a commit the last one, which the folder notes before and after."""
        self._begun.append(new.id)
        _write_state(self.folder, _State(self._last.id if self._last else "", tuple(self._begun)))
        commit.add(self._bucket, new, writer=process_names())
        self._begun.clear()
        _write_state(self.folder, _State(new.id))
        self._last = new


def _choose(there: list[str], sent: list[str], kept: Kept) -> tuple[set[str], set[str]]:
    """Returns which local checkpoints the bucket gets, and which of its own ones it keeps.

    `there` are the names of the local checkpoints, `sent` the names in the bucket, by step. Another
    machine may have saved what is in the bucket only.
    """
    # A run that went back has deleted later checkpoints, and they stay deleted.
    earlier = [name for name in sent if not there or _order(name) < _order(there[-1])]
    if kept.latest is None:
        return {*there}, {*earlier}
    latest = sorted({*earlier, *there[-1:]}, key=_order)[-kept.latest :]
    chosen = {*there[-1:], *(name for name in there if name in sent or name in kept.pinned)}
    return chosen, {*latest, *(name for name in earlier if name in kept.pinned)}


def _seal(segments: tuple[Segment, ...]) -> tuple[int, str]:
    """Returns size and SHA-256 of a file that was sent whole; no digest for any other file."""
    digest = segments[0].sha256 if len(segments) == 1 else ""
    return sum(segment.size for segment in segments), digest


def _order(name: str) -> tuple[int, str]:
    return len(name), name


# ---- down ----------------------------------------------------------------------------------------


def bring_down(
    bucket: Bucket, folder: Path, *, checkpoints: int | None = 1, strict: bool = True
) -> Commit | None:
    """Makes a folder equal to a bucket's last commit, unless it continues that commit.

    Args:
        bucket: the bucket's folder.
        folder: the local folder, which is made. The caller has it for itself.
        checkpoints: how many of the newest checkpoints to read; None: all. The folder's own ones
            stay if they equal those in the bucket, and the newest is among them.
        strict: whether to refuse a folder whose commits the bucket has lost.

    Returns:
        The last commit, or None without a commit: the folder then stays as it is.

    Raises:
        ParamError: if `strict`, and the bucket has lost the folder's commits.
        BucketError: if the bucket fails, or an object is damaged.
        StorageError: if a file cannot be written.
    """
    for _ in range(_TRIES):  # the writer may replace the commit meanwhile
        last, state = commit.read_newest(bucket), _read_state(folder)
        if last is None:
            if state.id and strict:
                raise ParamError(
                    f"{folder} is the copy of a run that {bucket.address} does not have any more:"
                    " delete this folder to begin anew"
                )
            return None
        try:
            _make_equal(bucket, last, state, folder, checkpoints)
        except MissingObject:
            if commit.newest_number(bucket, commit.COMMITS) == last.number:
                raise
            continue
        return last
    raise files.StorageError(f"cannot read {bucket.address}: it changes faster than it is read")


def _make_equal(
    bucket: Bucket, last: Commit, state: _State, folder: Path, checkpoints: int | None
) -> None:
    names = table.checkpoint_names(last.table)
    wanted = names if checkpoints is None else names[len(names) - min(checkpoints, len(names)) :]
    if state.is_last(last):
        there = table.local_checkpoints(folder)
        if there and checkpoints is not None:
            wanted = []  # the folder has the same checkpoint, later ones, or has gone back
        missing = [name for name in wanted if name not in there]
        if there:
            missing = [name for name in missing if _order(name) < _order(there[-1])]
        only = {path: last.table[path] for path in last.table if path.startswith("checkpoints/")}
        table.restore(bucket, only, folder, checkpoints=missing)
        return
    with files.explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATE).unlink(missing_ok=True)  # until the end, the folder continues nothing
    chosen = {*names} & {*wanted, *table.local_checkpoints(folder)}
    if chosen.isdisjoint(names[-1:]):
        chosen.clear()  # else the run would go on from an earlier checkpoint
    table.restore(bucket, last.table, folder, checkpoints=sorted(chosen, key=_order))
    table.delete_others(last.table, folder, checkpoints=chosen)
    _write_state(folder, _State(last.id))


def _read_state(folder: Path) -> _State:
    try:
        match json.loads((folder / STATE).read_bytes()):
            case {"id": str(unique), "pending": list(pending)}:
                return _State(unique, tuple(map(str, pending)))
    except (OSError, ValueError, RecursionError):
        pass
    return _State()


def _write_state(folder: Path, state: _State) -> None:
    files.write_text(folder / STATE, json.dumps(state._asdict()))


# ---- readers -------------------------------------------------------------------------------------


def pull(address: str, folder: Path, *, checkpoints: int | None = 1) -> bool:
    """Makes a local copy equal to a bucket's last commit; returns whether there is one.

    `checkpoints` and errors are as for `bring_down`. A copy in which a process of this machine
    writes is newer than the bucket, and is left as it is.
    """
    bucket = Bucket(address)
    if commit.read_newest(bucket) is None:
        return False
    with alone(folder):  # who takes the lock waits for this
        if not files.Lock(folder / ".lock").is_taken():
            found = results.read(bucket)
            bring_down(bucket, folder, checkpoints=checkpoints, strict=False)
            results.add(found, folder)
    return True


def local_run(path: str | Path, *, checkpoints: int | None = 1) -> Path:
    """Returns a run's directory; an address stands for its local copy, brought up to date."""
    folder = cache.local_copy(path) if cache.is_address(path) else Path(path)
    if (address := cache.address_of(folder)) is not None:
        pull(address, folder, checkpoints=checkpoints)
    return folder


def pull_all(address: str, folder: Path) -> None:
    """Pulls, without checkpoints, each run that is at or below an address.

    Objects may come from anywhere, so runs whose address has no local copy, such as one with "..",
    are left out.
    """
    names = Bucket(address).names()
    ends = (f"{commit.COMMITS}/", f"/{commit.COMMITS}/")
    homes = {name[: name.rindex(ends[0])] for name in names if ends[1] in f"/{name}"}
    for home in sorted(home.rstrip("/") for home in homes):
        run = f"{address.rstrip('/')}/{home}".rstrip("/")
        if cache.is_valid(run):
            pull(run, folder / home, checkpoints=0)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process pulls into a folder, and keeps others waiting meanwhile."""
    with files.explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _PULLING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
