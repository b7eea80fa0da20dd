"""What a path means: each kind of source is recognized, and what is none is refused."""

import os
import pathlib
import shutil
import struct

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import CheckpointMismatch, NoUsableCheckpoint
from lingo.checkpoints.sources.find import TfCheckpoint, find_source, prefix_of
from lingo.checkpoints.sources.weight_source import Tensor, UnusableSource
from lingo.config.lazy import tf
from lingo.config.params import ParamError

ONE = np.ones(2, np.float32)


def open_source(path, step=None, averages=False):
    return find_source(path, step=step, averages=averages)


@pytest.fixture
def run(tmp_path):
    """The directory of a run with two checkpoints."""
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        tensors = {"weights/a": ONE, "slots/m/a": 2 * ONE, "state/mean": 3 * ONE}
        store.save(tmp_path / "run/checkpoints", step=step, tensors=tensors.items(), metadata={})
    return tmp_path / "run"


def test_a_run_its_checkpoints_and_one_of_them_are_recognized(run):
    for path in (run, run / "checkpoints", run / "checkpoints/step_00000002"):
        source = open_source(path)
        assert source.what == "lingo checkpoint of step 2"
        assert set(source.tensors) == {"a", "mean"}
        np.testing.assert_array_equal(source.read("mean"), 3 * ONE)
    assert open_source(run, step=1).path == run / "checkpoints/step_00000001"
    with pytest.raises(NoUsableCheckpoint, match="no checkpoint of step 3; it has 1, 2"):
        open_source(run, step=3)


def test_a_run_without_averages_has_none_to_read(run):
    with pytest.raises(CheckpointMismatch, match=r"holds no averages: optimizer\.ema_decay"):
        open_source(run, averages=True)


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NoUsableCheckpoint, match="has no checkpoint yet"):
        open_source(tmp_path)


def test_safetensors_are_recognized_by_name_and_in_a_directory(tmp_path):
    content = struct.pack("<Q", 2) + b"{}"
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert open_source(path).what == "safetensors"
    (tmp_path / "other.safetensors").write_bytes(content)
    with pytest.raises(UnusableSource, match=r"2 \.safetensors files: .* model\.safetensors, oth"):
        open_source(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(UnusableSource, match=r"index\.json is damaged"):
        open_source(tmp_path)


def test_tensorflow_checkpoints_are_recognized(tmp_path):
    prefix = tf.train.Checkpoint(a=tf.Variable(ONE)).save(str(tmp_path / "ckpt"))
    for path in (tmp_path, pathlib.Path(prefix), pathlib.Path(f"{prefix}.index")):
        assert open_source(path).what == "TensorFlow checkpoint"


def test_a_step_or_averages_are_for_runs_of_lingo(run):
    other = run / "model.safetensors"
    other.write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(ParamError, match=r"init_from\.step=1 is for the directory of a run"):
        open_source(other, step=1)
    with pytest.raises(ParamError, match=r"init_from\.weights='ema' is for runs of lingo"):
        open_source(other, averages=True)


def test_what_is_nothing_of_the_kind_is_refused_with_what_is_taken(tmp_path):
    (tmp_path / "some.bin").write_bytes(b"PK")
    os.mkfifo(tmp_path / "pipe")
    for name in ("", "some.bin", "pipe"):
        with pytest.raises(UnusableSource, match=r"holds no weights .* \.safetensors file"):
            open_source(tmp_path / name)
    for name in ("nowhere", "some.bin/below", "x" * 300, "none.safetensors"):
        with pytest.raises(UnusableSource, match=r"does not exist|cannot be read"):
            open_source(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    path.chmod(0)
    with pytest.raises(UnusableSource, match="Permission denied"):
        open_source(path)


@pytest.mark.parametrize("name", ["tensors.index", "tensors", "MANIFEST.json"])
def test_of_a_file_of_a_checkpoint_of_lingo_the_directory_is_named(run, name):
    path = run / f"checkpoints/step_00000002/{name}"
    with pytest.raises(UnusableSource, match=rf"checkpoint of lingo: .* {path.parent}\."):
        open_source(path)


VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


def save(prefix, tensors, specs=None):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[(specs or {}).get(name, "") for name in tensors],
        tensors=[tf.convert_to_tensor(value) for value in tensors.values()],
    )
    return prefix


@pytest.fixture
def theirs(tmp_path):
    """Prefix of a tf.train.Checkpoint."""
    net = tf.train.Checkpoint(w=tf.Variable(VALUE), half=tf.Variable(tf.cast(VALUE, tf.bfloat16)))
    odd = {"a/b.c..d": tf.Variable([1, 2])}
    return pathlib.Path(tf.train.Checkpoint(net=net, odd=odd).write(str(tmp_path / "theirs")))


def test_variables_have_the_names_that_the_program_gave_them(theirs):
    source = TfCheckpoint(theirs)
    assert source.tensors == {
        "net/w": Tensor((2, 3), "float32"),
        "net/half": Tensor((2, 3), "bfloat16"),
        "odd/a/b.c..d": Tensor((2,), "int32"),
    }
    np.testing.assert_array_equal(source.read("net/w"), VALUE)
    np.testing.assert_array_equal(source.read("net/half").astype(np.float32), VALUE)
    np.testing.assert_array_equal(source.read("odd/a/b.c..d"), [1, 2])
    assert [p.name for p in source.files(())] == ["theirs.index", "theirs.data-00000-of-00001"]


def first_row(shape, dtype, partition_info):  # as tf.compat.v1 calls it
    return tf.fill(shape, tf.cast(partition_info.var_offset[0], dtype))


def save_three(folder, **options):
    """Saves three steps as TensorFlow 1 did; returns the prefixes of those that are kept."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.compat.v1.get_variable("scope/w", initializer=tf.constant(VALUE))
        parts = tf.compat.v1.get_variable(
            "parts",
            shape=[4, 2],
            initializer=first_row,
            partitioner=tf.compat.v1.fixed_size_partitioner(2),
        )
        del parts
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(max_to_keep=2, **options)
        for step in (1, 2, 3):
            saver.save(session, str(folder / "model.ckpt"), global_step=step)
            session.run(w.assign_add(tf.ones_like(w)))
    return [folder / f"model.ckpt-{step}" for step in (2, 3)]


def test_what_a_saver_of_tensorflow_1_wrote_is_read(tmp_path):
    second, third = save_three(tmp_path)
    source = TfCheckpoint(third)
    expected = {"scope/w": Tensor((2, 3), "float32"), "parts": Tensor((4, 2), "float32")}
    assert source.tensors == expected
    np.testing.assert_array_equal(source.read("scope/w"), VALUE + 2)
    np.testing.assert_array_equal(source.read("parts"), [[0, 0], [0, 0], [2, 2], [2, 2]])
    np.testing.assert_array_equal(TfCheckpoint(second).read("scope/w"), VALUE + 1)


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """Prefix of a checkpoint of two tensors."""
    return save(tmp_path / "two", {"w": VALUE, "b": np.float64([1, 2])})


DATA = "two.data-00000-of-00001"


def test_a_flipped_byte_anywhere_in_the_data_is_found(two):
    path = two.with_name(DATA)
    raw = path.read_bytes()
    assert len(raw) == VALUE.nbytes + 16
    for i in range(len(raw)):
        path.write_bytes(raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :])
        source = TfCheckpoint(two)
        with pytest.raises(UnusableSource, match=r"two is damaged: .* Checksum does not match"):
            _ = [source.read(name) for name in "wb"]


@pytest.mark.parametrize("size", [0, 48, -1])
def test_an_index_that_is_cut_short_is_refused(two, size):
    path = two.with_name("two.index")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UnusableSource, match=r"two is damaged: .*sstable"):
        TfCheckpoint(two)


def test_data_that_is_cut_short_or_missing_is_named(two):
    path = two.with_name(DATA)
    os.truncate(path, 20)
    with pytest.raises(UnusableSource, match="two is damaged: "):
        TfCheckpoint(two).read("w")
    path.unlink()
    with pytest.raises(UnusableSource, match=f"{DATA} cannot be read: No such file"):
        TfCheckpoint(two)
    os.mkfifo(path)
    with pytest.raises(UnusableSource, match=f"{DATA} is not a regular file"):
        TfCheckpoint(two)


def test_one_of_several_files_of_data_that_is_missing_is_named(tmp_path):
    prefixes = [str(save(tmp_path / name, {name: VALUE})) for name in "ab"]
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "both")
    )
    (tmp_path / "both.data-00001-of-00002").unlink()
    source = TfCheckpoint(tmp_path / "both")
    np.testing.assert_array_equal(source.read("a"), VALUE)
    with pytest.raises(UnusableSource, match=r"both\.data-00001-of-00002; No such file"):
        source.read("b")


def test_a_directory_of_the_same_name_is_not_looked_into(two):
    save(two / "other", {"x": VALUE})
    (two / "checkpoint").write_text('model_checkpoint_path: "other"\n')
    assert set(TfCheckpoint(two).tensors) == {"w", "b"}


# ---- what is meant by a path -------------------------------------------------------------------


def test_a_prefix_is_meant_by_each_of_its_files(theirs):
    for name in ("theirs", "theirs.index", "theirs.data-00000-of-00001"):
        assert prefix_of(theirs.with_name(name)) == theirs
    assert prefix_of(theirs.with_name("other")) is None


def test_a_directory_means_the_latest_that_its_state_file_names(tmp_path):
    second, third = save_three(tmp_path / "run")
    assert prefix_of(tmp_path / "run") == third
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert prefix_of(tmp_path / "copy") == tmp_path / "copy" / third.name
    for name in (second.name, f"/elsewhere/{second.name}", f"../../{second.name}"):
        (tmp_path / "run/checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
        assert prefix_of(tmp_path / "run") == second


def test_a_state_file_cannot_lead_out_of_its_directory(tmp_path):
    _, third = save_three(tmp_path / "run")
    away = tmp_path / "away"
    away.mkdir()
    (away / "checkpoint").write_text(f'model_checkpoint_path: "{third}"\n')
    with pytest.raises(UnusableSource, match=r"names model\.ckpt-3, which is not in its .* none"):
        prefix_of(away)
    (away / "checkpoint").write_text('model_checkpoint_path: "."\n')
    with pytest.raises(UnusableSource, match="not in its directory"):
        prefix_of(away)
    (away / "checkpoint").write_bytes(b"\xff\0garbage")
    with pytest.raises(UnusableSource, match="names no model_checkpoint_path"):
        prefix_of(away)


def test_a_directory_without_a_state_file_must_hold_one_checkpoint(tmp_path):
    second, third = save_three(tmp_path)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(UnusableSource, match=r"2 checkpoints .* model\.ckpt-2, model\.ckpt-3"):
        prefix_of(tmp_path)
    for file in tmp_path.glob(f"{second.name}.*"):
        file.unlink()
    assert prefix_of(tmp_path) == third
    assert prefix_of(tmp_path / "..") is None
