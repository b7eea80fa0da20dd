"""The commits of a run in a bucket: each lists all files of the run.

    lingo/commits/00000012.json              the run's files and their objects
    lingo/objects/<attempt>/metrics.jsonl    the bytes that one attempt to commit has added
    lingo/lease/00000003.json                who may write
    lingo/results/<evaluation>/...           see `results`; no commit names them

Readers see the commit with the highest number. A commit is put if absent: if two writers have read
the same commit, only one can add the next, and the other learns it. Objects that no commit names
are invisible: a killed upload left them. A process that deletes such objects first adds a commit,
so that an upload that was only slow cannot be committed any more.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, NamedTuple

from lingo.config.base.errors import LingoError
from lingo.storage.bucket import table
from lingo.storage.bucket.bucket import Bucket, BucketError, MissingObject
from lingo.storage.bucket.table import Table

COMMITS = "lingo/commits"
FORMAT = 1

_NUMBER = re.compile(r"(\d{8,12})\.json")
_TRIES = 10


class Commit(NamedTuple):
    """A commit of a run."""

    number: int  # 1, 2, ...
    id: str  # differs from all others, also of runs that had the same address before
    table: Table

    @property
    def objects(self) -> set[str]:
        """The names of the objects that it needs."""
        return objects(self.table)


def objects(files: Table) -> set[str]:
    """Returns the names of the objects that files need."""
    return {segment.name for segments in files.values() for segment in segments}


class OvertakenError(LingoError):
    """Another writer has committed to the same address."""

    exit_code = 6


def number_of(name: str) -> int | None:
    """Returns the number in the name of an object such as commits/00000012.json, or None."""
    match = _NUMBER.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else None


def name_of(folder: str, number: int) -> str:
    """Returns the name of a folder's object with a number."""
    return f"{folder}/{number:08d}.json"


def newest_number(bucket: Bucket, folder: str) -> int:
    """Returns the highest number of a folder's objects, or 0 for an empty folder."""
    return max((number_of(name) or 0 for name in bucket.names(folder)), default=0)


def read_newest(bucket: Bucket) -> Commit | None:
    """Returns the last commit, or None without a commit. Raises BucketError if it is damaged."""
    for _ in range(_TRIES):  # a writer may delete a commit after the next one
        number = newest_number(bucket, COMMITS)
        if not number:
            return None
        try:
            return _parse(bucket.read(name_of(COMMITS, number)), number, bucket.address)
        except MissingObject:
            continue
    raise BucketError(f"cannot read {bucket.address}: commits disappear faster than they are read")


def _parse(content: bytes, number: int, address: str) -> Commit:
    try:
        match json.loads(content):
            case {"format": 1, "id": str(unique), "files": files}:
                return Commit(number, unique, table.from_json(files))
    except (ValueError, RecursionError):
        pass
    raise BucketError(f"{address}/{name_of(COMMITS, number)} is not a commit that lingo wrote")


def add(bucket: Bucket, commit: Commit, *, writer: dict[str, Any]) -> None:
    """Makes a commit the last one. Raises OvertakenError if another has its number, or a later one.

    A commit is deleted after the next one was added. So a writer that slept may find its number
    free, although others have gone on; it then has to leave all objects as they are.
    """
    content = {"format": FORMAT, "id": commit.id, "writer": writer}
    content["files"] = table.to_json(commit.table)
    data = json.dumps(content, indent=1).encode()
    is_new = bucket.put_if_absent(name_of(COMMITS, commit.number), data)
    if not is_new or newest_number(bucket, COMMITS) > commit.number:
        raise OvertakenError(
            f"another process has written to {bucket.address}, and continues the run there; what"
            " this process has done since its last upload is in the local copy only"
        )


def find_garbage(bucket: Bucket, last: Commit | None) -> list[str]:
    """Returns the names of earlier commits, and of objects that the last commit does not need.

    Objects of an upload in progress are among them. So only the process that makes the next commit
    after this call may delete them: the upload then cannot be committed any more.
    """
    needed = last.objects if last is not None else set()
    earlier = [name for name in bucket.names(COMMITS) if (number_of(name) or 0) < _number(last)]
    return earlier + [name for name in bucket.names(table.OBJECTS) if name not in needed]


def delete_replaced(bucket: Bucket, before: Commit, after: Commit) -> None:
    """Deletes a commit that another has replaced, and then the objects that only it needs."""
    bucket.delete(name_of(COMMITS, before.number))
    for name in sorted(before.objects - after.objects):
        bucket.delete(name)


def next_commit(last: Commit | None, content: Table) -> Commit:
    """Returns the commit after the last one, with a table."""
    return Commit(_number(last) + 1, uuid.uuid4().hex, content)


def _number(last: Commit | None) -> int:
    return last.number if last is not None else 0
