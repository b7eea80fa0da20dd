"""A lease says which process may write to an address, in place of a lock.

    lingo/lease/00000003.json    {"owner": "host h, process 12", "time": 17e8, "seconds": 60, ...}

The highest number counts. Only its owner writes the object again, every `seconds / 4`. Others take
the next number, put if absent: as soon as the lease is released, is older than its `seconds`, or
belongs to a process of this machine that has ended.

Clocks may differ between machines, and a process may sleep for longer than its lease. So a lease
keeps writers apart, but the commits keep the run whole (`commit.add`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from lingo.storage.bucket.bucket import Bucket, BucketError, MissingObject
from lingo.storage.bucket.commit import name_of, newest_number
from lingo.storage.files import DirectoryLocked

LEASES = "lingo/lease"
SECONDS = 60.0

_log = logging.getLogger(__name__)


class Lease:
    """The right of this process to write to an address.

    Attributes:
        has_overtaken: whether the owner before has not released it, and may still write.
    """

    def __init__(self, bucket: Bucket, *, seconds: float = SECONDS) -> None:
        """Takes nothing yet; the lease is valid for `seconds` after each renewal."""
        self._bucket, self._seconds = bucket, seconds
        self._number = 0
        self._id = uuid.uuid4().hex
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost_to: str | None = None
        self.has_overtaken = False

    def take(self) -> None:
        """Takes the lease, and renews it in a thread until `release`.

        Raises DirectoryLocked, naming the owner, if another process has it, and BucketError if the
        bucket fails.
        """
        number = newest_number(self._bucket, LEASES)
        before = self._read(number) if number else {}
        if refusal := self._refusal(before):
            raise DirectoryLocked(refusal)
        self.has_overtaken = bool(number) and not before.get("released")
        if not self._bucket.put_if_absent(name_of(LEASES, number + 1), self._content()):
            owner = self._read(number + 1).get("owner", "another process")
            raise DirectoryLocked(f"{self._bucket.address} is in use by {owner}, which was faster")
        self._number = number + 1
        for old in range(max(1, number - 3), number):
            self._bucket.delete(name_of(LEASES, old))
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises DirectoryLocked if another process has taken over; asks no network."""
        if self._lost_to is not None:
            raise DirectoryLocked(
                f"{self._bucket.address} was taken over by {self._lost_to}, because this process"
                f" did not renew its lease for {self._seconds:.0f} s: it stops, and writes nothing"
                " more there"
            )

    def release(self) -> None:
        """Lets others take the lease at once; if that fails, they get it when it ends."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        if self._number and self._lost_to is None:
            try:
                self._bucket.put(name_of(LEASES, self._number), self._content(released=True))
            except BucketError as error:
                _log.warning("the lease ends in %.0f s: %s", self._seconds, error)
        self._number = 0

    def _renew(self) -> None:
        while not self._ends.wait(self._seconds / 4):
            try:
                newest = newest_number(self._bucket, LEASES)
                content = self._read(newest)
                if newest != self._number or content.get("id") != self._id:
                    self._lost_to = content.get("owner", "another process")
                    return
                self._bucket.put(name_of(LEASES, self._number), self._content())
            except BucketError as error:  # uploads meet the same trouble, and end the run
                _log.warning("the lease is not renewed: %s", error)

    def _read(self, number: int) -> dict[str, Any]:
        try:
            content = json.loads(self._bucket.read(name_of(LEASES, number)))
        except (ValueError, MissingObject):
            return {}
        return content if isinstance(content, dict) else {}

    def _content(self, *, released: bool = False) -> bytes:
        own = {"id": self._id, "time": time.time(), "seconds": self._seconds, "released": released}
        return json.dumps({**own, **process_names()}).encode()

    def _refusal(self, lease: dict[str, Any]) -> str | None:
        """Returns why another's lease cannot be taken, or None if it can."""
        if lease.get("released") or not lease or _has_ended(lease):
            return None
        try:
            left = float(lease["time"]) + float(lease["seconds"]) - time.time()
        except (KeyError, TypeError, ValueError):
            return None
        if left < 0:
            return None
        return (
            f"{self._bucket.address} is in use by {lease.get('owner')}: stop it, or name another"
            f" address. If it was killed on another machine, try again in {left:.0f} s."
        )


def process_names() -> dict[str, Any]:
    """Returns the names of this process: `owner` in words, the others for `_has_ended`."""
    pid = os.getpid()
    return {
        "owner": f"host {socket.gethostname()}, process {pid}",
        "machine": _machine(),
        "pid": pid,
        "started": _start_ticks(pid),
    }


def _has_ended(lease: dict[str, Any]) -> bool:
    """Returns whether the owner was a process of this machine that has ended."""
    pid, started = lease.get("pid"), lease.get("started")
    if not (isinstance(pid, int) and started and lease.get("machine") == _machine()):
        return False
    if ticks := _start_ticks(pid):
        return ticks != started
    try:  # /proc may hide the processes of other users (hidepid); their numbers stay known
        os.kill(pid, 0)
    except PermissionError:
        return False
    except OSError:
        return True
    return False


def _machine() -> str:
    """Returns a text that two processes share only if they see each other's numbers in /proc."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid.uuid4().hex


def _start_ticks(pid: int) -> str:
    """Returns when a process began, as the system counts; "" if it has ended, or is hidden."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
