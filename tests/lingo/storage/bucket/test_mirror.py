"""A folder in a bucket equals its last commit; nothing hostile or damaged comes down."""

import json
import os

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.bucket import commit, mirror, table
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.commit import Commit
from lingo.storage.bucket.mirror import Mirror
from lingo.storage.files import Lock, StorageError
from tests.lingo.storage.bucket.folders import committed, content, step, write


@pytest.fixture
def address(memory):
    return memory.address


def test_another_machine_gets_the_files_as_they_are(address, folder, elsewhere):
    files = {"config.json": "{}", "metrics.jsonl": "a\n", "train/events": "x", "empty": ""}
    write(folder, files | step(2))
    committed(folder, address)
    assert mirror.pull(address, elsewhere)
    assert content(elsewhere) == content(folder) == files | step(2)


def test_readers_leave_no_lock_and_wait_for_none(address, folder, elsewhere):
    write(folder, {"STATUS": "1"})
    one = committed(folder, address)
    mirror.pull(address, elsewhere)
    assert not (elsewhere / ".lock").exists()
    lock = Lock(elsewhere / ".lock")
    lock.acquire()  # a process trains here
    write(folder, {"STATUS": "2"})
    one.upload()
    one.wait()
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == {"STATUS": "1"}
    lock.release()
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == {"STATUS": "2"}


def test_logs_grow_by_segments_of_which_few_remain(address, folder, elsewhere, memory):
    one = committed(folder, address)
    for number in range(40):
        folder.mkdir(exist_ok=True)
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(f"row {number}\n")
        one.upload()
        one.wait()
    last = commit.read_newest(memory)
    assert last.number == 40
    assert len(last.table["metrics.jsonl"]) <= 6  # log2 of 40
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == content(folder)
    assert set(memory.names(table.OBJECTS)) == last.objects


def test_a_log_that_was_cut_is_cut_there(address, folder, elsewhere):
    write(folder, {"metrics.jsonl": "1\n2\n"})
    one = committed(folder, address)
    for text in ("1\n2\n3\n4\n", "1\n2\n", "1\n2\nthree\n", ""):
        os.replace(_written(folder / "new", text), folder / "metrics.jsonl")
        one.upload()
        one.wait()
        mirror.pull(address, elsewhere)
        assert content(elsewhere) == {"metrics.jsonl": text}


def _written(path, text):
    path.write_text(text)
    return path


def test_unchanged_files_are_sent_once(address, folder, memory):
    write(folder, {"config.json": "{}"} | step(2))
    one = committed(folder, address)
    before = set(memory.names(table.OBJECTS))
    write(folder, {"STATUS": "running"})
    one.upload()
    one.wait()
    (new,) = set(memory.names(table.OBJECTS)) - before
    assert new.endswith("/STATUS")


def test_nothing_new_makes_no_commit(address, folder, memory):
    write(folder, {"config.json": "{}"})
    one = committed(folder, address)
    one.upload()
    one.wait()
    assert commit.read_newest(memory).number == 1


def test_a_folder_that_has_gone_on_since_its_last_commit_keeps_that(address, folder):
    write(folder, {"metrics.jsonl": "1\n"} | step(2))
    committed(folder, address)
    write(folder, {"metrics.jsonl": "1\n2\n"} | step(4))
    before = content(folder)
    again = Mirror(folder, address)
    again.open()
    assert content(folder) == before
    again.close(is_sound=True)


def test_a_folder_that_was_overtaken_becomes_that_of_the_bucket(address, folder, elsewhere):
    write(folder, {"metrics.jsonl": "1\n", "old": ""} | step(2))
    committed(folder, address)
    write(folder, {"metrics.jsonl": "1\n2\n"} | step(4, "lost"))
    mirror.pull(address, elsewhere)
    (elsewhere / "old").unlink()
    write(elsewhere, {"metrics.jsonl": "1\ntwo\n"} | step(4, "other"))
    committed(elsewhere, address)
    mirror.pull(address, folder)
    assert content(folder) == content(elsewhere)


def test_hidden_files_links_and_runs_below_are_not_sent(address, folder, elsewhere):
    write(folder, {"sweep.json": "{}", ".lock": "", "000/config.json": "{}", "000/log.txt": ""})
    write(folder, {"001/trial.json": "{}", "checkpoints/step_00000002.corrupt-1/data": ""})
    (folder / "link").symlink_to("/etc/passwd")
    committed(folder, address)
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == {"sweep.json": "{}", "001/trial.json": "{}"}


def test_the_copy_of_a_run_that_was_deleted_is_not_sent_again(address, folder, memory):
    write(folder, {"config.json": "{}"})
    committed(folder, address)
    for name in memory.names():
        memory.delete(name)
    with pytest.raises(ParamError, match="does not have any more: delete this folder"):
        Mirror(folder, address).open()


@pytest.mark.parametrize(
    "files",
    [
        {"../out": []},
        {"/etc/passwd": []},
        {"a/.ssh": []},
        {"a//b": []},
        {"a": [["elsewhere", 1, ""]]},
        {"a": [["lingo/objects/x", -1, ""]]},
        {"a": 3},
        [],
    ],
)
def test_a_hostile_commit_writes_nothing(memory, elsewhere, files):
    data = json.dumps({"format": 1, "id": "x", "files": files}).encode()
    memory.put(commit.name_of(commit.COMMITS, 1), data)
    with pytest.raises(BucketError, match="a commit "):
        mirror.pull(memory.address, elsewhere)
    assert not elsewhere.exists()


def test_a_commit_that_cannot_be_read_is_named(memory, elsewhere):
    memory.put(commit.name_of(commit.COMMITS, 1), b"{")
    with pytest.raises(BucketError, match=r"00000001\.json is not a commit that lingo wrote"):
        mirror.pull(memory.address, elsewhere)


def test_a_reader_that_meets_a_new_commit_reads_that(address, folder, elsewhere, monkeypatch):
    write(folder, {"STATUS": "1"})
    one = committed(folder, address)
    newest = commit.read_newest
    numbers = []

    def overtaken(bucket):
        found = newest(bucket)
        numbers.append(found.number)
        if len(numbers) == 2:  # between the reader's list and its first read
            write(folder, {"STATUS": "2"})
            one.upload()
            one.wait()
        return found

    monkeypatch.setattr(commit, "read_newest", overtaken)
    mirror.pull(address, elsewhere)
    assert numbers == [1, 1, 2]
    assert content(elsewhere) == {"STATUS": "2"}


def test_runs_below_an_address_are_pulled_without_checkpoints(memory, folder, elsewhere):
    for name in ("a", "b/c"):
        write(folder / name, {"config.json": name} | step(2))
        committed(folder / name, f"{memory.address}/{name}")
    mirror.pull_all(memory.address, elsewhere)
    assert content(elsewhere) == {"a/config.json": "a", "b/c/config.json": "b/c"}


def test_a_run_whose_name_leads_out_of_the_folder_is_left_out(address, folder, monkeypatch):
    found, pulled = ["../out/", "a//b/", ".git/", "a/", ""], []
    names = [f"{home}{commit.name_of(commit.COMMITS, 1)}" for home in found]
    monkeypatch.setattr(Bucket, "names", lambda _: names)
    monkeypatch.setattr(mirror, "pull", lambda run, copy, **_: pulled.append((run, copy)))
    mirror.pull_all(address, folder)
    assert pulled == [(address, folder), (f"{address}/a", folder / "a")]


def test_a_damaged_object_is_no_file(address, folder, elsewhere, memory):
    write(folder, {"config.json": "{}"})
    committed(folder, address)
    (name,) = memory.names(table.OBJECTS)
    memory.put(name, b"[]")
    with pytest.raises(BucketError, match="is damaged"):
        mirror.pull(address, elsewhere)
    assert content(elsewhere) == {}


def test_the_number_of_a_commit_is_that_of_its_name():
    assert commit.number_of("lingo/commits/00000012.json") == 12
    assert commit.number_of("lingo/commits/12.txt") is None
    assert Commit(1, "x", {}).objects == set()


def test_a_file_that_cannot_be_read_is_named(address, folder, monkeypatch):
    write(folder, {"config.json": "{}"})

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(table, "open_inside", refuse)
    with pytest.raises(StorageError, match=r"cannot read .*/config\.json to upload it: Permission"):
        committed(folder, address)
