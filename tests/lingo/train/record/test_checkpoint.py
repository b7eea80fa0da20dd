"""Checkpoints: committed whole, found damaged at any byte, read by other programs."""

from __future__ import annotations

import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from lingo.lazy import tf
from lingo.train.record import checkpoint
from lingo.train.record.checkpoint import CheckpointMismatch, DamagedCheckpoint, NoUsableCheckpoint
from lingo.train.record.storage import StorageError

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def tensors(scale=1.0):
    grid = scale * np.arange(12, dtype=np.float32).reshape(3, 4)
    return {"weights/ffn/w": grid, "slots/m/ffn/w": grid / 2, "state/count": np.int64(7)}


def save(directory, step, *, keep=3, scale=1.0):
    return checkpoint.save(
        directory, step=step, tensors=tensors(scale).items(), metadata={"seed": 1}, keep=keep
    )


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_what_is_saved_is_read(tmp_path):
    save(tmp_path, 20)
    found = checkpoint.latest(tmp_path)
    assert (found.step, found.path.name) == (20, "step_00000020")
    assert found.metadata == {"seed": 1}
    assert found.passed_over == ()
    read = found.read(tensors())
    for name, value in tensors().items():
        np.testing.assert_array_equal(read[name], value)
    assert found.tensors["state/count"] == ((), "int64")
    assert sorted(os.listdir(found.path)) == [
        "MANIFEST.json",
        "tensors.data-00000-of-00001",
        "tensors.index",
    ]


@pytest.mark.parametrize("name", [*FLOATS, *INTS, "bool"])
def test_every_type_is_read_whole_and_in_slices(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    value = (np.arange(24).reshape(4, 6) % 5).astype(dtype)
    checkpoint.save(
        tmp_path, step=1, tensors=[("w", value), ("s", value[1, 1])], metadata={}, keep=1
    )
    found = checkpoint.latest(tmp_path)
    read = found.read(["w", "s"])
    assert read["w"].dtype == dtype
    np.testing.assert_array_equal(read["w"], value)
    assert read["s"] == value[1, 1]
    part = found.read_slice("w", [slice(1, 3), slice(2, None)])
    assert part.dtype == dtype
    np.testing.assert_array_equal(part, value[1:3, 2:])
    assert found.read_slice("s", []) == value[1, 1]


def test_tensors_and_variables_are_saved_as_arrays_are(tmp_path):
    values = {"a": tf.constant([1.0, 2.0]), "b": tf.Variable([3.0]), "empty": tf.zeros([0, 3])}
    checkpoint.save(tmp_path, step=1, tensors=values.items(), metadata={}, keep=1)
    read = checkpoint.latest(tmp_path).read(["b", "a", "empty"])
    assert [v.tolist() for v in read.values()] == [[3.0], [1.0, 2.0], []]


def test_parts_written_one_after_the_other_are_one_bundle(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_PART_BYTES", 40)
    save(tmp_path, 1)
    found = checkpoint.latest(tmp_path)
    assert len([f for f in found.manifest["files"] if "data" in f]) == 3
    np.testing.assert_array_equal(
        found.read(["slots/m/ffn/w"])["slots/m/ffn/w"], tensors()["slots/m/ffn/w"]
    )


def test_a_committed_step_is_never_written_again(tmp_path):
    path = save(tmp_path, 5)
    before = (path / "MANIFEST.json").read_bytes()
    with pytest.raises(FileExistsError, match="committed already"):
        save(tmp_path, 5, scale=2.0)
    assert (path / "MANIFEST.json").read_bytes() == before


def test_the_oldest_go_when_there_are_more_than_to_keep(tmp_path):
    for step in (1, 2, 30, 4):
        save(tmp_path, step, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_00000004", "step_00000030"]


def test_what_is_protected_stays_beside_the_latest(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint.save(
            tmp_path,
            step=step,
            tensors=tensors(1.0).items(),
            metadata={},
            keep=1,
            protected=[2] if step < 4 else [3],
        )
    assert checkpoint.steps(tmp_path) == [3, 4]


def test_a_save_that_fails_leaves_the_old_checkpoints_and_no_files(tmp_path):
    save(tmp_path, 1)

    def breaks():
        yield "a", np.zeros(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, step=2, tensors=breaks(), metadata={}, keep=1)
    assert os.listdir(tmp_path) == ["step_00000001"]


@pytest.mark.parametrize(
    ("entries", "metadata", "message"),
    [
        ([("a", 1), ("a", 2)], {}, "two tensors have the name 'a'"),
        ([("a", 1)], {"loss": float("nan")}, "JSON"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused(tmp_path, entries, metadata, message):
    with pytest.raises(ValueError, match=message):
        checkpoint.save(tmp_path, step=1, tensors=entries, metadata=metadata, keep=1)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(StorageError, match=r"cannot write .*checkpoints"):
        save(tmp_path / "checkpoints", 1)


def test_leftovers_of_a_killed_process_are_no_checkpoints_and_are_cleared(tmp_path):
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step_00000001", tmp_path / ".tmp-2-99-abc")
    shutil.copytree(tmp_path / "step_00000001", tmp_path / ".trash-step_00000003-abc")
    assert checkpoint.steps(tmp_path) == [1]
    assert checkpoint.latest(tmp_path).step == 1
    checkpoint.clear_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["step_00000001"]


def test_no_checkpoint_yet_is_none(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "missing") is None


def test_a_flipped_bit_anywhere_is_found_and_the_one_before_is_used(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 25)):
            flip(file, position)
            found = checkpoint.latest(tmp_path)
            assert found.step == 1, (file.name, position)
            assert file.name in str(found.passed_over[0])
            file.write_bytes(whole)
    assert checkpoint.latest(tmp_path).step == 2


@pytest.mark.parametrize("harm", ["truncate", "delete", "link"])
def test_a_file_cut_short_missing_or_elsewhere_is_found(tmp_path, harm):
    path = save(tmp_path / "c", 2)
    for file in sorted(path.iterdir()):
        away = tmp_path / "away"
        shutil.copy(file, away)
        if harm == "truncate":
            os.truncate(file, file.stat().st_size - 1)
        else:
            file.unlink()
        if harm == "link" and file.name != checkpoint.MANIFEST:
            file.symlink_to(away)
        with pytest.raises(NoUsableCheckpoint, match=f"damaged: {file.name}") as caught:
            checkpoint.latest(tmp_path / "c")
        assert caught.value.exit_code == 3
        file.unlink(missing_ok=True)
        shutil.copy(away, file)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{", '{"sha256": "x"}', "\xff"])
def test_a_manifest_that_is_none_is_damage(tmp_path, text):
    path = save(tmp_path, 1)
    (path / checkpoint.MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedCheckpoint, match="MANIFEST"):
        checkpoint.open_checkpoint(path)


def rewrite(path, **changes):
    manifest = path / checkpoint.MANIFEST
    body = json.loads(manifest.read_text())
    del body["sha256"]
    manifest.write_text(checkpoint._rendered(body | changes))


def test_a_manifest_cannot_point_outside(tmp_path):
    path = save(tmp_path, 1)
    rewrite(path, files={"../../etc/passwd": {"size": 1, "sha256": ""}})
    with pytest.raises(DamagedCheckpoint, match="no name of a file in it"):
        checkpoint.open_checkpoint(path)


def test_the_manifest_of_another_step_is_damage(tmp_path):
    path = save(tmp_path, 1)
    shutil.move(path, tmp_path / "step_00000009")
    with pytest.raises(NoUsableCheckpoint, match="it is that of step 1"):
        checkpoint.latest(tmp_path)


def test_a_later_format_is_not_called_damage(tmp_path):
    rewrite(save(tmp_path, 1), format=2)
    with pytest.raises(NoUsableCheckpoint, match="has format 2; this lingo reads 1"):
        checkpoint.latest(tmp_path)


def test_a_damaged_checkpoint_set_aside_makes_room_and_is_never_a_silent_start(tmp_path):
    for expected in ("step_00000001.corrupt-1", "step_00000001.corrupt-2"):
        path = save(tmp_path, 1)
        assert checkpoint.set_aside(path).name == expected
    assert checkpoint.steps(tmp_path) == []
    with pytest.raises(NoUsableCheckpoint, match="was damaged before"):
        checkpoint.latest(tmp_path)


def expectation():
    return {
        "weights/ffn/w": ((3, 4), "float32"),
        "slots/m/ffn/w": ((3, 4), "float32"),
        "state/count": ((), "int64"),
    }


def test_the_same_model_is_accepted(tmp_path):
    save(tmp_path, 1)
    checkpoint.latest(tmp_path).require(expectation())


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"weights/ffn/w": ((4, 4), "float32")},
            [r"shape weights/ffn/w: checkpoint \[3, 4\], model \[4, 4\]"],
        ),
        (
            {"weights/ffn/w": ((3, 4), "bfloat16")},
            ["dtype weights/ffn/w: checkpoint float32, model bfloat16"],
        ),
        ({"weights/other/k": ((2,), "float32")}, ["missing weights/other/k"]),
        (
            {"weights/ffn/w": None, "weights/ffn/w1": ((3, 4), "float32")},
            ["missing weights/ffn/w1 Did you mean 'weights/ffn/w'", "unexpected weights/ffn/w"],
        ),
    ],
)
def test_another_model_is_told_apart_by_path(tmp_path, changes, lines):
    save(tmp_path, 1)
    expected = {k: v for k, v in (expectation() | changes).items() if v is not None}
    for line in lines:
        with pytest.raises(CheckpointMismatch, match=line) as caught:
            checkpoint.latest(tmp_path).require(expected)
        assert caught.value.exit_code == 4


def test_a_long_difference_is_cut(tmp_path):
    save(tmp_path, 1)
    expected = {f"weights/{i}": ((1,), "float32") for i in range(50)}
    with pytest.raises(CheckpointMismatch, match=r"\.\.\. and 33 more"):
        checkpoint.latest(tmp_path).require(expected)


def test_reading_what_is_not_there_names_what_is_near(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(CheckpointMismatch, match="Did you mean 'weights/ffn/w'"):
        checkpoint.latest(tmp_path).read(["weights/ffn/v"])


def test_damage_after_verification_is_found_by_the_bundle(tmp_path):
    path = save(tmp_path, 1)
    found = checkpoint.latest(tmp_path)
    flip(path / "tensors.data-00000-of-00001", 10)
    with pytest.raises(DamagedCheckpoint, match="tensors"):
        found.read(tensors())
