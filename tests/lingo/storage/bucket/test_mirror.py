"""A folder in a bucket equals its last commit, whatever was killed, and has one writer."""

import json
import os

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage.bucket import commit, mirror, table
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.commit import Commit, OvertakenError
from lingo.storage.bucket.mirror import Kept, Mirror
from lingo.storage.files import DirectoryLocked, StorageError


@pytest.fixture
def address(memory):
    return memory.address


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "here"


@pytest.fixture
def elsewhere(tmp_path):
    return tmp_path / "elsewhere"


def write(folder, files):
    """Writes files of a folder, path -> text."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def content(folder):
    """Returns path -> text of a folder's files that are not hidden."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {n: p.read_text() for n, p in found.items() if not n.startswith(".") and "/." not in n}


def step(number, text=""):
    return {f"checkpoints/step_{number:08d}/{name}": f"{name}{text}" for name in ("data", "index")}


def committed(folder, address, kept=None):
    """Opens a mirror, commits the folder, and ends without a release, as a killed process does."""
    one = Mirror(folder, address)
    one._lease = NoLease()
    one.open()
    one.kept = kept or Kept()
    one.upload()
    one.wait()
    return one


class NoLease:
    """A lease that every process has."""

    has_overtaken = False

    def take(self):
        pass

    def check(self):
        pass

    def release(self):
        pass


def test_another_machine_gets_the_files_as_they_are(address, folder, elsewhere):
    files = {"config.json": "{}", "metrics.jsonl": "a\n", "train/events": "x", "empty": ""}
    write(folder, files | step(2))
    committed(folder, address)
    assert mirror.pull(address, elsewhere)
    assert content(elsewhere) == content(folder) == files | step(2)


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


def test_the_rest_of_a_killed_upload_is_invisible_and_swept(address, folder, elsewhere, memory):
    write(folder, {"config.json": "{}"} | step(2))
    committed(folder, address)
    memory.put(f"{table.OBJECTS}/killed/checkpoints/step_00000004/data", b"half")
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == content(folder)
    committed(elsewhere, address)
    assert not [name for name in memory.names() if "killed" in name]


def test_a_folder_that_has_gone_on_since_its_last_commit_keeps_that(address, folder):
    write(folder, {"metrics.jsonl": "1\n"} | step(2))
    committed(folder, address)
    write(folder, {"metrics.jsonl": "1\n2\n"} | step(4))
    before = content(folder)
    again = Mirror(folder, address)
    again.open()
    assert content(folder) == before
    again.close(is_sound=True)


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


def test_of_checkpoints_the_newest_the_pinned_and_so_many_earlier_ones_stay(address, folder):
    kept = Kept(2, {"step_00000002"})
    write(folder, step(2))
    one = committed(folder, address, kept)
    for number in (4, 6, 8):
        write(folder, step(number))
        one.upload()
        one.wait()
        if number < 8:  # the folder itself keeps the last one only
            table.remove(folder / f"checkpoints/step_{number:08d}")
    assert one.checkpoints == [f"step_{number:08d}" for number in (2, 6, 8)]


def test_what_only_the_bucket_has_stays_if_it_is_pinned_or_no_checkpoint_is_here(
    address, folder, elsewhere
):
    write(folder, {"config.json": "{}"} | step(2) | step(4))
    committed(folder, address)
    mirror.pull(address, elsewhere)
    assert table.local_checkpoints(elsewhere) == ["step_00000004"]
    one = committed(elsewhere, address, Kept(1, {"step_00000002"}))
    assert one.checkpoints == ["step_00000002", "step_00000004"]
    table.remove(elsewhere / "checkpoints")
    write(elsewhere, {"STATUS": "failed"})
    one.upload()
    one.wait()
    assert one.checkpoints == ["step_00000002", "step_00000004"]


def test_a_checkpoint_that_is_deleted_while_it_is_opened_is_not_sent(
    address, folder, elsewhere, monkeypatch
):
    write(folder, {"config.json": "{}"} | step(2))
    one = committed(folder, address, Kept(1))
    write(folder, step(4))
    take = table.take_snapshot

    def slow(*args, **options):
        snapshot = take(*args, **options)
        if (folder / "checkpoints/step_00000004").exists():
            write(folder, step(6))
            table.remove(folder / "checkpoints/step_00000004")
        return snapshot

    monkeypatch.setattr(table, "take_snapshot", slow)
    one.upload()
    one.wait()
    assert one.checkpoints == ["step_00000002", "step_00000006"]


def test_a_run_that_goes_back_takes_later_checkpoints_from_the_bucket(address, folder):
    write(folder, step(2) | step(4))
    one = committed(folder, address, Kept(3))
    write(folder, step(6))
    one.upload()
    one.wait()
    for number in (4, 6):
        table.remove(folder / f"checkpoints/step_{number:08d}")
    write(folder, step(4, "again"))
    one.upload()
    one.wait()
    assert one.checkpoints == ["step_00000004"]


def test_only_the_newest_checkpoint_comes_down_unless_more_are_wanted(address, folder, elsewhere):
    write(folder, {"config.json": "{}"} | step(2) | step(4))
    committed(folder, address)
    mirror.pull(address, elsewhere, checkpoints=0)
    assert content(elsewhere) == {"config.json": "{}"}
    mirror.pull(address, elsewhere)
    assert content(elsewhere) == {"config.json": "{}"} | step(4)
    mirror.pull(address, elsewhere, checkpoints=None)
    assert content(elsewhere) == content(folder)


def test_a_folder_that_was_overtaken_goes_on_from_the_newest_checkpoint(address, folder, elsewhere):
    write(folder, {"config.json": "{}"} | step(2) | step(4))
    committed(folder, address)
    mirror.pull(address, elsewhere)
    write(elsewhere, step(6))
    committed(elsewhere, address)
    mirror.pull(address, folder, checkpoints=0)  # as `lingo show` does, or the start of training
    again = Mirror(folder, address)
    again.open()
    assert table.local_checkpoints(folder)[-1] == "step_00000006"
    again.close(is_sound=True)


def test_a_checkpoint_of_the_same_step_is_replaced_by_that_of_the_bucket(
    address, folder, elsewhere
):
    write(folder, {"config.json": "{}"} | step(2) | step(4))
    committed(folder, address)
    mirror.pull(address, elsewhere, checkpoints=None)
    write(elsewhere, step(2, "again") | step(6))
    committed(elsewhere, address)
    mirror.pull(address, folder)
    assert content(folder) == content(elsewhere)


def test_a_folder_that_has_gone_back_does_not_get_later_checkpoints_again(address, folder):
    write(folder, {"config.json": "{}"} | step(2) | step(4))
    committed(folder, address)
    table.remove(folder / "checkpoints/step_00000004")
    mirror.pull(address, folder, checkpoints=None)
    assert table.local_checkpoints(folder) == ["step_00000002"]


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
