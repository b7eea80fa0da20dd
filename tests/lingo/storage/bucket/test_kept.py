"""Which checkpoints a bucket has, and which come down; a damaged one never replaces a good one."""

import hashlib
import os
import pathlib

import pytest

from lingo.storage.bucket import commit, mirror, table
from lingo.storage.bucket.mirror import Kept, Mirror
from tests.lingo.storage.bucket.folders import committed, content, step, write


@pytest.fixture
def address(memory):
    return memory.address


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


# ---- damage --------------------------------------------------------------------------------------


def sealed_step(number, text):
    """Returns the files of a checkpoint whose index has the digest of its data."""
    folder = f"checkpoints/step_{number:08d}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {f"{folder}/data": text, f"{folder}/index": digest}


def is_sound(path, files):
    """Returns whether a checkpoint's data are what its index says."""
    index = path / "index"
    wanted = index.read_text() if index.exists() else None
    return {*files} == {"data", "index"} and files["data"][1] == wanted


DAMAGE = {
    "a byte has changed": lambda data: data.write_text("goot"),
    "it was cut": lambda data: data.write_text("go"),
    "it is gone": pathlib.Path.unlink,
    "the index has changed": lambda data: (data.parent / "index").write_text("0" * 64),
    "the index is gone": lambda data: (data.parent / "index").unlink(),
}


@pytest.mark.parametrize("is_new_process", [False, True])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_checkpoint_that_is_damaged_here_stays_good_there(
    address, folder, elsewhere, how, is_new_process, memory
):
    write(folder, {"config.json": "{}"} | sealed_step(2, "good"))
    one = committed(folder, address, check=is_sound)
    before = commit.read_newest(memory).table
    DAMAGE[how](folder / "checkpoints/step_00000002/data")
    write(folder, {"STATUS": "1"})
    if is_new_process:
        one = committed(folder, address, check=is_sound)
    one.upload()
    one.wait()
    last = commit.read_newest(memory)
    assert {path: last.table[path] for path in before} == before
    assert set(memory.names(table.OBJECTS)) == last.objects
    assert mirror.pull(address, elsewhere)
    assert content(elsewhere) == {"config.json": "{}", "STATUS": "1"} | sealed_step(2, "good")


def test_one_that_was_saved_again_after_a_rewind_replaces_that_of_the_bucket(
    address, folder, elsewhere
):
    write(folder, sealed_step(2, "two") | sealed_step(4, "four"))
    one = committed(folder, address, check=is_sound)
    table.remove(folder / "checkpoints/step_00000004")
    write(folder, sealed_step(4, "again"))
    one.upload()
    one.wait()
    mirror.pull(address, elsewhere, checkpoints=None)
    assert content(elsewhere) == sealed_step(2, "two") | sealed_step(4, "again")


def test_one_that_is_damaged_before_its_first_upload_is_left_out(address, folder, memory, caplog):
    damaged = sealed_step(4, "four") | {"checkpoints/step_00000004/data": "five"}
    write(folder, sealed_step(2, "two") | damaged)
    one = committed(folder, address, check=is_sound)
    write(folder, {"STATUS": "1"})
    one.upload()
    one.wait()
    assert one.checkpoints == ["step_00000002"]
    assert "step_00000004 is damaged, or was deleted, and is not uploaded" in caplog.text
    assert set(memory.names(table.OBJECTS)) == commit.read_newest(memory).objects


def test_files_of_checkpoints_are_opened_one_by_one(folder):
    write(folder, {f"checkpoints/step_00000002/{i}": "x" for i in range(300)})
    before = len(os.listdir("/proc/self/fd"))
    snapshot = table.take_snapshot(folder, {}, checkpoints=["step_00000002"])
    assert len(snapshot.changed) == 300
    assert len(os.listdir("/proc/self/fd")) == before
    snapshot.close()


def test_a_checkpoint_must_stay_while_it_is_sent(address, folder, monkeypatch):
    write(folder, step(2))
    one = committed(folder, address)
    write(folder, step(4))
    send, seen = table.send, []

    def slow(*args, **options):
        seen.extend(one.sending)
        return send(*args, **options)

    monkeypatch.setattr(table, "send", slow)
    one.upload()
    one.wait()
    assert seen == ["step_00000004"]
    assert not one.sending
