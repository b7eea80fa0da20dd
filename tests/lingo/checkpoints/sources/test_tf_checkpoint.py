"""Checkpoints that TensorFlow itself wrote: read by name, damage found, nothing left out."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

from lingo.checkpoints.sources.source import Tensor, UnusableSource
from lingo.checkpoints.sources.tf_checkpoint import TfCheckpoint, prefix_of
from lingo.config.lazy import tf

VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def theirs(tmp_path: pathlib.Path) -> pathlib.Path:
    """Prefix of a tf.train.Checkpoint."""
    net = tf.train.Checkpoint(w=tf.Variable(VALUE), half=tf.Variable(tf.cast(VALUE, tf.bfloat16)))
    odd = {"a/b.c..d": tf.Variable([1, 2])}
    return pathlib.Path(tf.train.Checkpoint(net=net, odd=odd).write(str(tmp_path / "theirs")))


def test_variables_have_the_names_that_the_program_gave_them(theirs: pathlib.Path) -> None:
    found = TfCheckpoint(theirs)
    assert found.tensors == {
        "net/w": Tensor((2, 3), "float32"),
        "net/half": Tensor((2, 3), "bfloat16"),
        "odd/a/b.c..d": Tensor((2,), "int32"),
    }
    np.testing.assert_array_equal(found.read("net/w"), VALUE)
    np.testing.assert_array_equal(found.read("net/half").astype(np.float32), VALUE)
    np.testing.assert_array_equal(found.read("odd/a/b.c..d"), [1, 2])
    assert [p.name for p in found.files(())] == ["theirs.index", "theirs.data-00000-of-00001"]


def first_row(shape, dtype, partition_info):  # as tf.compat.v1 calls it
    return tf.fill(shape, tf.cast(partition_info.var_offset[0], dtype))


def saved(folder: pathlib.Path, **options: object) -> list[pathlib.Path]:
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


def test_what_a_saver_of_tensorflow_1_wrote_is_read(tmp_path: pathlib.Path) -> None:
    second, third = saved(tmp_path)
    found = TfCheckpoint(third)
    assert found.tensors == {
        "scope/w": Tensor((2, 3), "float32"), "parts": Tensor((4, 2), "float32")
    }  # fmt: skip
    np.testing.assert_array_equal(found.read("scope/w"), VALUE + 2)
    np.testing.assert_array_equal(found.read("parts"), [[0, 0], [0, 0], [2, 2], [2, 2]])
    np.testing.assert_array_equal(TfCheckpoint(second).read("scope/w"), VALUE + 1)


def test_shards_are_read_together(tmp_path: pathlib.Path) -> None:
    *_, third = saved(tmp_path, sharded=True)
    assert TfCheckpoint(third).read("scope/w").shape == (2, 3)


# ---- what is meant by a path -------------------------------------------------------------------


def test_a_prefix_is_meant_by_each_of_its_files(theirs: pathlib.Path) -> None:
    for name in ("theirs", "theirs.index", "theirs.data-00000-of-00001"):
        assert prefix_of(theirs.with_name(name)) == theirs
    assert prefix_of(theirs.with_name("other")) is None


def test_a_directory_means_the_latest_that_its_state_file_names(tmp_path: pathlib.Path) -> None:
    second, third = saved(tmp_path / "run")
    assert prefix_of(tmp_path / "run") == third
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert prefix_of(tmp_path / "copy") == tmp_path / "copy" / third.name
    for name in (second.name, f"/elsewhere/{second.name}", f"../../{second.name}"):
        (tmp_path / "run/checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
        assert prefix_of(tmp_path / "run") == second


def test_a_state_file_cannot_lead_out_of_its_directory(tmp_path: pathlib.Path) -> None:
    _, third = saved(tmp_path / "run")
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


def test_a_directory_without_a_state_file_must_hold_one_checkpoint(tmp_path: pathlib.Path) -> None:
    second, third = saved(tmp_path)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(UnusableSource, match=r"2 checkpoints .* model\.ckpt-2, model\.ckpt-3"):
        prefix_of(tmp_path)
    for file in tmp_path.glob(f"{second.name}.*"):
        file.unlink()
    assert prefix_of(tmp_path) == third
    assert prefix_of(pathlib.Path(shutil.os.fspath(tmp_path)) / "..") is None
