"""The checkpoints of a run: committed whole, never rewritten, found damaged at any byte."""

import errno
import logging
import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from lingo.checkpoints import commit, store
from lingo.checkpoints.checkpoint import open_sound
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.manifest import MANIFEST
from lingo.checkpoints.store import Retention, share_checkpoint, share_checkpoints
from lingo.config.base.errors import NumericFailure
from lingo.config.lazy import tf
from lingo.processes.processes import ALONE
from lingo.storage.files import StorageError


def latest(directory):
    found = store.latest(directory)
    return found


# ---- saving ------------------------------------------------------------------------------------


def test_what_is_saved_is_the_latest(tmp_path, save):
    assert store.latest(tmp_path) is None
    assert store.latest(tmp_path / "missing") is None
    save(tmp_path, 7)
    path = save(tmp_path, 20)
    found = latest(tmp_path)
    assert (found.step, found.path, found.later_errors) == (20, path, ())
    assert sorted(os.listdir(path)) == [
        "MANIFEST.json",
        "tensors.data-00000-of-00001",
        "tensors.index",
    ]


def test_tensors_and_variables_are_saved_as_arrays_are(tmp_path, save):
    values = {"a": tf.constant([1.0, 2.0]), "b": tf.Variable([3.0]), "empty": tf.zeros([0, 3])}
    save(tmp_path, 1, tensors=values.items())
    found = latest(tmp_path)
    read = found.read(["b", "a", "empty"])
    assert [v.tolist() for v in read.values()] == [[3.0], [1.0, 2.0], []]


def test_the_same_state_is_saved_as_the_same_bytes(tmp_path, save):
    one, other = save(tmp_path / "one", 5), save(tmp_path / "other", 5)
    for file in one.iterdir():
        assert file.read_bytes() == (other / file.name).read_bytes()


@pytest.mark.parametrize("there", ["checkpoint", "file", "link"])
def test_a_committed_step_is_never_written_again(tmp_path, save, there):
    path = save(tmp_path, 5)
    if there != "checkpoint":
        shutil.rmtree(path)
        path.write_text("mine") if there == "file" else path.symlink_to("nowhere")
    before = [p.lstat().st_mtime_ns for p in (path, *sorted(tmp_path.rglob("*")))]
    with pytest.raises(StorageError, match="a committed step is never written again"):
        save(tmp_path, 5, scale=2.0)
    assert [p.lstat().st_mtime_ns for p in (path, *sorted(tmp_path.rglob("*")))] == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensors": [("a", 1), ("a", 2)]}, "two tensors have the name 'a'"),
        ({"tensors": [("a", 1j)]}, "not a type of numbers"),
        ({"metadata": {"loss": float("nan")}}, "JSON"),
        ({"metadata": {"seed": "0"}}, "metadata.seed is str"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused(tmp_path, save, options, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path, 1, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_never_committed(tmp_path, save, tensors, dtype, number):
    save(tmp_path, 1)
    bad = np.ones((3, 4)).astype(getattr(ml_dtypes, dtype, dtype))
    bad[1, 1:3] = number
    said = r"step 2 is not saved: 2 of 12 numbers in weights/z are not finite"
    with pytest.raises(NumericFailure, match=said) as caught:
        save(tmp_path, 2, tensors={**tensors(), "weights/z": bad}.items(), keep=1)
    assert caught.value.exit_code == 8
    assert os.listdir(tmp_path) == ["step_00000001"]


def test_a_directory_that_cannot_be_written_is_a_storage_error(tmp_path, save):
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(StorageError, match=r"cannot write .*checkpoints"):
        save(tmp_path / "checkpoints", 1)


# ---- which stay --------------------------------------------------------------------------------


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(tmp_path, save, monkeypatch, caplog):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    save(tmp_path, 1)
    monkeypatch.setattr(shutil, "rmtree", denied)
    with caplog.at_level(logging.WARNING):
        save(tmp_path, 2, keep=1)
    assert "an old checkpoint stays: cannot write" in caplog.text
    assert store.steps(tmp_path) == [2], "it is no checkpoint before its first file goes"


# ---- finding -----------------------------------------------------------------------------------


def test_whatever_has_the_name_of_a_step_is_a_checkpoint_sound_or_not(tmp_path, save):
    save(tmp_path, 1)
    (tmp_path / "step_00000002").mkdir()
    (tmp_path / "step_00000003").write_text("a file")
    (tmp_path / "step_00000004").symlink_to(tmp_path / "step_00000001")
    (tmp_path / "step_00000005").symlink_to(tmp_path / "nowhere")
    (tmp_path / "step_6").mkdir()
    (tmp_path / "step_000000007").mkdir()
    assert store.steps(tmp_path) == [1, 2, 3, 4, 5]
    found = latest(tmp_path)
    assert found.step == 1
    assert [(error.path.name[-1], error.reason) for error in found.later_errors] == [
        ("5", "it is a link to elsewhere"),
        ("4", "it is a link to elsewhere"),
        ("3", "Not a directory"),
        ("2", "No such file or directory"),
    ]
    for error in found.later_errors:
        store.quarantine(error.path)
    assert store.steps(tmp_path) == [1]
    assert store.quarantined_names(tmp_path) == [f"step_0000000{i}.corrupt-1" for i in (2, 3, 4, 5)]
    for step in (2, 3, 4, 5):
        save(tmp_path, step)


def test_a_damaged_checkpoint_set_aside_makes_room_and_is_never_a_silent_start(tmp_path, save):
    for expected in ("step_00000001.corrupt-1", "step_00000001.corrupt-2"):
        path = save(tmp_path, 1)
        assert store.quarantine(path).name == expected
    assert store.steps(tmp_path) == []
    with pytest.raises(NoUsableCheckpoint, match="was damaged before") as caught:
        store.latest(tmp_path)
    assert caught.value.exit_code == 3


def test_a_checkpoint_that_goes_while_it_is_read_is_not_called_damaged(tmp_path, save, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)
    opened = store.open_sound

    def late(path):
        if path.name == "step_00000002" and path.exists():
            store.delete(path)
            save(tmp_path, 3)
        return opened(path)

    monkeypatch.setattr(store, "open_sound", late)
    found = latest(tmp_path)
    assert (found.step, found.later_errors) == (3, ())


def test_of_a_step_that_goes_while_it_is_read_those_that_are_left_are_named(
    tmp_path, save, monkeypatch
):
    for step in (1, 2):
        save(tmp_path, step)
    opened = store.open_sound

    def late(path):
        store.delete(path)
        return opened(path)

    monkeypatch.setattr(store, "open_sound", late)
    with pytest.raises(NoUsableCheckpoint, match="run has no checkpoint of step 2; it has 1"):
        store.find(tmp_path, 2, of="run")


def test_one_that_turned_out_to_be_unreadable_counts_as_damaged(tmp_path, save):
    for step in (1, 2):
        save(tmp_path, step)
    error = DamagedCheckpoint(store.step_path(tmp_path, 2), "tensors", "garbage")
    found = store.latest(tmp_path, unreadable=[error])
    assert (found.step, found.later_errors) == (1, (error,))
    found = store.find(tmp_path, None, of=tmp_path, unreadable=[error])
    assert (found.step, found.later_errors) == (1, (error,))


def test_a_directory_that_cannot_be_listed_is_not_taken_for_empty(tmp_path, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(NoUsableCheckpoint, match="cannot be read: Permission denied"):
        store.latest(tmp_path)


def test_nothing_is_saved_where_a_link_leads_to(tmp_path, save):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"step_00000001: .*it is a link"):
        save(tmp_path / "checkpoints", 1)
    assert not list((tmp_path / "elsewhere").iterdir())


# ---- leftovers ---------------------------------------------------------------------------------


def test_leftovers_of_a_killed_process_are_no_checkpoints_and_are_cleared(tmp_path, save):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    directory = tmp_path / "checkpoints"
    path = save(directory, 1)
    shutil.copytree(path, directory / ".tmp-2-99-abc")
    shutil.copytree(path, directory / ".trash-step_00000003-abc")
    (directory / ".tmp-file").write_text("")
    (directory / ".tmp-link").symlink_to(kept)
    (directory / ".trash-link").symlink_to(tmp_path)
    assert store.steps(directory) == [1]
    store.clear_leftovers(directory)
    assert os.listdir(directory) == ["step_00000001"]
    assert kept.read_text() == "kept"


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("file", [MANIFEST, "tensors.index"])
def test_what_cannot_be_read_now_is_not_called_damaged(tmp_path, save, monkeypatch, code, file):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    opened = os.open

    def refused(name, *how):
        if name == path / file:
            raise OSError(code, os.strerror(code))
        return opened(name, *how)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)  # as without permission to look
    with pytest.raises(NoUsableCheckpoint, match=f"00000002 cannot be read now: {file}: "):
        store.latest(tmp_path)
    assert store.steps(tmp_path) == [1, 2]


def test_what_went_wrong_first_is_told(tmp_path, save, monkeypatch):
    def full(folder, values, table, *, name):
        next(values)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(commit, "write_bundle", full)
    given = [("a", np.zeros(2, np.float32)), ("b", np.array([np.nan]))]
    with pytest.raises(StorageError, match="No space left"):
        save(tmp_path, 1, tensors=given)


# ---- several processes ---------------------------------------------------------------------------


def test_others_open_what_the_leader_found_though_there_is_a_later_one(tmp_path, save, crowd):
    found = open_sound(save(tmp_path, 1))
    save(tmp_path, 2)

    def share(member, found):
        def find():
            assert member.is_leader
            return found

        return share_checkpoint(member, tmp_path, find)

    assert [one.step for one in crowd(2).run(lambda member: share(member, found))] == [1, 1]
    assert crowd(2).run(lambda member: share(member, None)) == [None, None]
    assert share_checkpoint(ALONE, tmp_path, lambda: None) is None


def test_many_are_shared_until_there_are_no_more(tmp_path, save, crowd):
    found = [open_sound(save(tmp_path, step)) for step in (2, 1)]
    both = crowd(2).run(lambda member: list(share_checkpoints(member, tmp_path, found)))
    assert [[one.step for one in some] for some in both] == [[2, 1]] * 2


@pytest.mark.parametrize(
    ("steps", "retention", "kept"),
    [
        ([], Retention(1), {}),
        ([5], Retention(3), {5: ["latest"]}),
        ([4, 1, 3, 2], Retention(2), {3: ["latest"], 4: ["latest"]}),
        ([10, 20, 30, 40], Retention(1, every=20), {20: ["every"], 40: ["latest", "every"]}),
        ([1, 2, 3], Retention(1, best=[1, 3, 9]), {1: ["best"], 3: ["latest", "best"]}),
        ([1, 2, 3], Retention(1, rewind=[2]), {2: ["rewind"], 3: ["latest"]}),
        ([1, 2, 3], Retention(1, upload=[1]), {1: ["upload"], 3: ["latest"]}),
        ([1, 2], Retention(), {1: ["latest"], 2: ["latest"]}),
    ],
)
def test_what_is_kept_has_its_reasons(steps, retention, kept):
    assert retention.reasons(steps) == kept
