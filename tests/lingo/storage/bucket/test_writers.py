"""A folder in a bucket has one writer, even if processes are killed, sleep, or fail."""

import os

import pytest

from lingo.storage.bucket import commit, mirror, table
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.commit import OvertakenError
from lingo.storage.bucket.mirror import Mirror
from lingo.storage.files import DirectoryLocked
from tests.lingo.storage.bucket.folders import committed, content, step, write


@pytest.fixture
def address(memory):
    return memory.address


def test_the_rest_of_a_killed_upload_is_invisible_and_swept(address, folder, elsewhere, memory):
    write(folder, {"config.json": "{}"} | step(2))
    committed(folder, address)
    memory.put(f"{table.OBJECTS}/killed/checkpoints/step_00000004/data", b"half")
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == content(folder)
    committed(elsewhere, address)
    assert not [name for name in memory.names() if "killed" in name]


def test_so_does_one_that_was_killed_between_a_commit_and_its_note(
    address, folder, monkeypatch, memory
):
    write(folder, {"metrics.jsonl": "1\n"})
    committed(folder, address)
    write(folder, {"metrics.jsonl": "1\n2\n"})
    add = commit.add

    def killed(*args, **options):
        add(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(commit, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        committed(folder, address)
    monkeypatch.undo()
    assert commit.read_newest(memory).number == 2
    write(folder, step(4))
    committed(folder, address)
    assert {*step(4)} <= {*content(folder)}


def test_of_two_writers_only_one_commits(address, folder, elsewhere):
    write(folder, {"config.json": "{}"})
    first = committed(folder, address)
    second = committed(elsewhere, address)
    write(folder, {"STATUS": "first"})
    write(elsewhere, {"STATUS": "second"})
    first.upload()
    first.wait()
    second.upload()
    with pytest.raises(OvertakenError, match="another process has written to memory://"):
        second.wait()
    mirror.pull(address, elsewhere)
    assert content(elsewhere)["STATUS"] == "first"


def test_an_upload_that_slept_while_another_took_over_is_shut_out(
    address, folder, elsewhere, monkeypatch, memory
):
    """All its objects are there, and the other has swept them before the commit that names them."""
    write(folder, {"config.json": "{}"} | step(2))
    sleeper = committed(folder, address)
    add, others = commit.add, []

    def slow(bucket, new, **options):
        if bucket is sleeper._bucket and not others:
            others.append(committed(elsewhere, address))
        return add(bucket, new, **options)

    monkeypatch.setattr(commit, "add", slow)
    write(folder, step(4))
    sleeper.upload()
    with pytest.raises(OvertakenError):
        sleeper.wait()
    assert content(elsewhere) == {"config.json": "{}"} | step(2)
    write(elsewhere, step(3))
    others[0].upload()
    others[0].wait()
    mirror.pull(address, folder, checkpoints=None)
    assert content(folder) == {"config.json": "{}"} | step(2) | step(3)
    assert set(memory.names(table.OBJECTS)) == commit.read_newest(memory).objects


def test_one_that_slept_while_another_committed_twice_deletes_nothing(
    address, folder, elsewhere, monkeypatch
):
    """Its number is free again: the other has replaced, and so deleted, the commit that had it."""
    write(folder, {"config.json": "{}", "metrics.jsonl": "1\n"})
    sleeper = committed(folder, address)
    add, others = commit.add, []

    def slow(bucket, new, **options):
        if bucket is sleeper._bucket and not others:
            others.append(committed(elsewhere, address))
            for number in (2, 3):
                write(elsewhere, {"STATUS": f"{number}"})
                others[0].upload()
                others[0].wait()
        return add(bucket, new, **options)

    monkeypatch.setattr(commit, "add", slow)
    write(folder, {"metrics.jsonl": "1\nother rows\n"})  # one segment in place of the first
    sleeper.upload()
    with pytest.raises(OvertakenError):
        sleeper.wait()
    mirror.pull(address, folder)
    assert content(folder) == content(elsewhere)
    assert content(folder)["STATUS"] == "3"


def test_one_that_slept_after_its_commit_deletes_nothing_of_the_other(
    address, folder, elsewhere, monkeypatch
):
    write(folder, {"config.json": "{}"} | step(2))
    sleeper = committed(folder, address)
    delete, others = commit.delete_replaced, []

    def slow(bucket, before, after):
        if not others:
            others.append(committed(elsewhere, address))
            write(elsewhere, step(5))
            others[0].upload()  # its objects are there, when the first one deletes
            others[0].wait()
        return delete(bucket, before, after)

    monkeypatch.setattr(commit, "delete_replaced", slow)
    write(folder, step(4))
    sleeper.upload()
    sleeper.wait()
    mirror.pull(address, folder, checkpoints=None)
    assert content(folder) == {"config.json": "{}"} | step(2) | step(4) | step(5)


def test_a_second_writer_is_told_who_the_first_is_and_gets_the_lease_after_it(
    address, folder, elsewhere
):
    first = Mirror(folder, address)
    folder.mkdir()
    first.open()
    with pytest.raises(DirectoryLocked, match=f"in use by host .*, process {os.getpid()}"):
        Mirror(elsewhere, address).open()
    first.close(is_sound=True)
    elsewhere.mkdir()
    second = Mirror(elsewhere, address)
    second.open()
    second.close(is_sound=True)


def test_an_upload_that_fails_is_told_by_the_next_check(address, folder, monkeypatch):
    write(folder, {"config.json": "{}"})
    one = committed(folder, address)

    def refuse(*args, **options):
        raise BucketError("no room")

    monkeypatch.setattr(Bucket, "upload", refuse)
    write(folder, {"STATUS": "1"})
    one.upload()
    one._thread.submit(lambda: None).result()
    with pytest.raises(BucketError, match="no room"):
        one.check()
