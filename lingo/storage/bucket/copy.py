"""Copies of whole runs: from a directory to a bucket, and from a bucket to a directory."""

from __future__ import annotations

import uuid
from pathlib import Path

from lingo.config.base.errors import ParamError
from lingo.storage import files
from lingo.storage.bucket import commit, mirror, results, table
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.bucket.lease import Lease, process_names


def send(folder: Path, address: str) -> None:
    """Copies a run's directory, with all its checkpoints, to an address that holds no run.

    The caller holds the directory's lock. Raises ParamError if there is a run, DirectoryLocked if
    another process writes there, and BucketError if the bucket fails.
    """
    bucket = Bucket(address)
    lease = Lease(bucket)
    lease.take()
    try:
        if commit.read_newest(bucket) is not None:
            raise ParamError(f"{address} holds a run already: name another address")
        there = table.local_checkpoints(folder)
        snapshot = table.take_snapshot(folder, {}, checkpoints=there)
        try:
            content = table.send(bucket, snapshot, {}, attempt=uuid.uuid4().hex)
        finally:
            snapshot.close()
        commit.add(bucket, commit.next_commit(None, content), writer=process_names())
    finally:
        lease.release()


def fetch(address: str, folder: Path) -> None:
    """Copies the last commit of a run in a bucket, with all its checkpoints, to a new directory.

    Raises ParamError if there is no run, or if the directory exists, and BucketError if the bucket
    fails.
    """
    bucket = Bucket(address)
    with files.new_folder(folder) as partial:
        found = results.read(bucket)
        if mirror.bring_down(bucket, partial, checkpoints=None) is None:
            raise ParamError(f"{address} holds no run")
        results.add(found, partial)
        (partial / mirror.STATE).unlink()  # the copy does not belong to the address
