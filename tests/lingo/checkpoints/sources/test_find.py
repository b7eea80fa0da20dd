"""What a path means: each kind of source is recognized, and what is none is refused."""

import os
import pathlib
import struct

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.errors import CheckpointMismatch, NoUsableCheckpoint
from lingo.checkpoints.sources.find import find_source
from lingo.checkpoints.sources.weight_source import UnusableSource
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
        with pytest.raises(UnusableSource, match=r"holds nothing .* \.safetensors file"):
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
