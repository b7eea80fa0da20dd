"""A lease has one owner, whom others are told; it ends with its process, or when it is stale."""

import json
import os
import subprocess
import sys
import time

import pytest

from lingo.storage.bucket import commit
from lingo.storage.bucket.lease import LEASES, Lease, process_names
from lingo.storage.files import DirectoryLocked

ELSEWHERE = {"machine": "another", "owner": "host far, process 7", "pid": 7, "started": "1"}


@pytest.fixture
def lease(memory):
    found = Lease(memory, seconds=60)
    yield found
    found.release()


def put(bucket, number, **changes):
    """Writes the lease of another process, which is an hour old unless `changes` say otherwise."""
    own = {"id": "x", "time": time.time() - 3600, "seconds": 60, "released": False}
    bucket.put(commit.name_of(LEASES, number), json.dumps(own | ELSEWHERE | changes).encode())


def newest(bucket):
    return commit.newest_number(bucket, LEASES)


def test_others_learn_who_has_it(memory, lease):
    lease.take()
    with pytest.raises(DirectoryLocked, match=rf"in use by host .*, process {os.getpid()}: stop"):
        Lease(memory).take()
    lease.release()
    other = Lease(memory)
    other.take()
    other.release()


def test_a_fresh_one_of_another_machine_is_respected_and_a_stale_one_taken(memory, lease):
    put(memory, 4, time=time.time() - 50)
    with pytest.raises(DirectoryLocked, match=r"host far, process 7.* try again in (9|10) s"):
        lease.take()
    put(memory, 4)
    lease.take()
    assert newest(memory) == 5


def test_of_two_that_take_a_stale_one_only_one_gets_it(memory, monkeypatch):
    put(memory, 1)
    first, second = Lease(memory), Lease(memory)
    refusal = Lease._refusal

    def slow(lease, content):  # the first is taken between the second's look and its try
        monkeypatch.setattr(Lease, "_refusal", refusal)
        first.take()
        return refusal(lease, content)

    monkeypatch.setattr(Lease, "_refusal", slow)
    with pytest.raises(DirectoryLocked, match="which was faster"):
        second.take()
    first.release()


def test_the_lease_of_a_process_of_this_machine_ends_with_it(memory, lease):
    code = "import json; from lingo.storage.bucket import lease; "
    code += "print(json.dumps(lease.process_names()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    ended = json.loads(said)
    assert ended["machine"] == process_names()["machine"]
    put(memory, 1, time=time.time(), **ended)
    lease.take()


@pytest.mark.parametrize(
    ("error", "has_ended"), [(PermissionError, False), (ProcessLookupError, True)]
)
def test_the_lease_of_another_users_process_stays_where_proc_hides_it(
    memory, lease, monkeypatch, error, has_ended
):
    """Mounted with hidepid, /proc shows a user no process of others; signal 0 tells of them."""

    def kill(pid, number):
        raise error

    own = process_names() | {"started": "1"}
    put(memory, 1, time=time.time(), **own)
    monkeypatch.setattr("lingo.storage.bucket.lease._start_ticks", lambda pid: "")
    monkeypatch.setattr(os, "kill", kill)
    if has_ended:
        lease.take()
    else:
        with pytest.raises(DirectoryLocked, match="in use by"):
            lease.take()


def test_the_owner_that_others_overtook_is_told_and_changes_nothing(memory):
    lease = Lease(memory, seconds=0.04)
    lease.take()
    lease.check()
    put(memory, 2, owner="host new, process 1")
    end = time.monotonic() + 30
    while lease._lost_to is None and time.monotonic() < end:
        time.sleep(0.005)
    with pytest.raises(DirectoryLocked, match="was taken over by host new, process 1"):
        lease.check()
    before = memory.read(commit.name_of(LEASES, 2))
    lease.release()
    assert memory.read(commit.name_of(LEASES, 2)) == before


def test_it_is_renewed_before_it_ends(memory):
    lease = Lease(memory, seconds=0.2)
    lease.take()
    before = json.loads(memory.read(commit.name_of(LEASES, 1)))["time"]
    end = time.monotonic() + 30
    while json.loads(memory.read(commit.name_of(LEASES, 1)))["time"] == before:
        assert time.monotonic() < end
        time.sleep(0.005)
    lease.release()
    assert json.loads(memory.read(commit.name_of(LEASES, 1)))["released"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"time": "x"}'])
def test_a_lease_that_cannot_be_read_can_be_taken(memory, lease, content):
    memory.put(commit.name_of(LEASES, 1), content)
    lease.take()
