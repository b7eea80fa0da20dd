"""Parts of checkpoints whose processes have no disk in common: they meet in the bucket.

    each process    send        its files, then a report
    the leader      receive     waits for all reports, and says who is missing
                    stand_in    reads the indices of the others' files, to merge them
                    keep        names the objects, for the mirror's next commit

Data stay in the bucket: the local copies have a checkpoint's manifest and index (`refresh`), and
its data as soon as they are read (`fetch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lingo.storage.bucket import cache, commit, table
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.bucket.mirror import alone
from lingo.storage.bucket.table import OBJECTS, Segment, Table
from lingo.storage.files import StorageError, write_bytes

WAIT_SECONDS = 600.0
"""How long the leader waits for the other processes' parts, after its own part is sent."""

_POLL_SECONDS = 0.2
_DATA = ".data-"


class Parts:
    """Hands one process's files of checkpoints to the leader; the leader commits them.

    Attributes:
        table: the objects of the last checkpoint's data, of all processes; the leader has them.
    """

    def __init__(self, address: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Asks the network nothing yet."""
        self.table: Table = {}
        self._bucket, self._wait_seconds = Bucket(address), wait_seconds
        self._folder = ""

    def begin(self, name: str) -> None:
        """Begins a checkpoint; all processes pass the same name, which no other attempt has."""
        self._folder = f"{OBJECTS}/{name.lstrip('.')}"

    def send(self, paths: Iterable[Path], *, report: Mapping[str, str]) -> None:
        """Uploads files, and then a report: its name -> its text. Raises BucketError."""
        for path in paths:
            with open(path, "rb") as file:
                name, size = f"{self._folder}/{path.name}", path.stat().st_size
                self._bucket.upload(name, file, start=0, stop=size)
        for name, text in report.items():
            self._bucket.put(f"{self._folder}/{name}", text.encode())

    def receive(self, reports: Mapping[int, Path], *, check: Callable[[], None]) -> None:
        """Waits for the reports of processes, and writes them to the paths.

        `check` is called meanwhile, and may raise. Raises StorageError, naming the processes that
        are missing, if they have not sent their parts after `wait_seconds`.
        """
        end, missing = time.monotonic() + self._wait_seconds, dict(reports)
        while missing:
            check()
            is_late = time.monotonic() > end
            there = {*self._bucket.names(self._folder)}
            for index, path in reports.items():
                if index in missing and (name := f"{self._folder}/{path.name}") in there:
                    write_bytes(path, self._bucket.read(name))
                    del missing[index]
            if missing and is_late:
                who = ", ".join(map(str, missing))
                raise StorageError(
                    f"the parts of {'process' if len(missing) == 1 else 'processes'} {who} are not"
                    f" in {self._bucket.address} after {self._wait_seconds:.0f} s: the checkpoint"
                    " is not written"
                )
            if missing:
                time.sleep(_POLL_SECONDS)

    def stand_in(self, folder: Path, names: Iterable[str]) -> None:
        """Writes other processes' files into a folder; their files of data are empty.

        Bundles can be merged there: a merge reads indices, and only renames files of data.
        """
        for name in names:
            is_data = _DATA in name
            content = b"" if is_data else self._bucket.read(f"{self._folder}/{name}")
            write_bytes(folder / name, content)

    def keep(self, checkpoint: str, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        """Names the objects of a checkpoint's data: file -> (file sent, its size and sha256).

        The other objects that were sent, reports and indices, are deleted. Raises BucketError.
        """
        self.table.clear()  # the mirror has committed earlier checkpoints
        for name, (sent, seal) in files.items():
            segment = Segment(f"{self._folder}/{sent}", seal["size"], seal["sha256"])
            self.table[f"{table.CHECKPOINTS}/{checkpoint}/{name}"] = (segment,)
        for name in {*self._bucket.names(self._folder)} - commit.objects(self.table):
            self._bucket.delete(name)


# ---- files of checkpoints that a local copy lacks ------------------------------------------------


def refresh(path: Path) -> None:
    """Reads a checkpoint's manifest and index into a local copy; does nothing elsewhere."""
    folder, name = path.parents[1], path.name
    if (address := cache.address_of(folder)) is None:
        return
    bucket = Bucket(address)
    with alone(folder):
        last = commit.read_newest(bucket)
        files = table.checkpoint_files(last.table, name) if last is not None else {}
        for file in sorted(files, reverse=True):  # the manifest is last
            if _DATA not in file and not (folder / file).exists():
                table.restore_file(bucket, files[file], folder / file, folder)


def fetch(path: Path) -> bool:
    """Reads a file that a local copy lacks; returns whether it was read."""
    folder, name = path.parents[2], "/".join(path.parts[-3:])
    if (address := cache.address_of(folder)) is None:
        return False
    bucket = Bucket(address)
    with alone(folder):
        last = commit.read_newest(bucket)
        if last is None or name not in last.table:
            return False
        if not path.exists():  # another process of this machine may have read it meanwhile
            table.restore_file(bucket, last.table[name], path, folder)
        return True


def has(path: Path, files: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether a bucket has files of a checkpoint of a local copy: name -> size, sha256."""
    folder = path.parents[1]
    if not files or (address := cache.address_of(folder)) is None:
        return False
    last = commit.read_newest(Bucket(address))
    known = table.checkpoint_files(last.table, path.name) if last is not None else {}
    return all(
        [(one.size, one.sha256) for one in known.get(f"{table.CHECKPOINTS}/{path.name}/{name}", ())]
        == [(file["size"], file["sha256"])]
        for name, file in files.items()
    )
