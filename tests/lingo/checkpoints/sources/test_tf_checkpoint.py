"""Checkpoints that TensorFlow itself wrote: read by name, damage found, nothing left out."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from lingo.checkpoints.sources.tf_checkpoint import TfCheckpoint, prefix_of
from lingo.checkpoints.sources.weight_source import Tensor, UnusableSource
from lingo.config.lazy import tf

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
