"""The record of what a run ran on."""

import json
import subprocess

import pytest

from lingo.trainer.directory.environment import environment, git, is_same


def test_it_is_json_and_names_versions_devices_and_data():
    record = environment(devices=["cpu:0"], data={"bytes": 3}, speed={})
    assert json.loads(json.dumps(record)) == record
    assert {"python", "tensorflow", "numpy"} <= record["versions"].keys()
    assert record["devices"] == ["cpu:0"]
    assert record["data"] == {"bytes": 3}


def test_records_are_the_same_if_only_the_start_differs():
    record = environment(devices=["cpu:0"], data={"bytes": 3}, speed={"matmul_dtype": "float32"})
    later = record | {"time": "later", "argv": ["again"], "matmul_flops_per_second": 2.0}
    later["host"] = {**record["host"], "pid": -1}
    assert is_same(json.dumps(record), later)
    for change in ({"data": {"bytes": 4}}, {"host": {}}, {"matmul_dtype": "bfloat16"}):
        assert not is_same(json.dumps(record), later | change)


@pytest.mark.parametrize("garbage", ["", "{", "[]", "3", '{"host": 3}'])
def test_garbage_is_no_record_that_could_be_the_same(garbage):
    assert not is_same(garbage, environment(devices=[], data={}, speed={}))


def run_git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_git_gives_commit_and_changes(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("a = 1\n")
    assert git(code) is None, "no repository"
    run_git(tmp_path, "init")
    assert git(code) is None, "not tracked"
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-m", "first")
    assert git(code)["patch"] == ""
    code.write_text("a = 2\n")
    record = git(code)
    assert len(record["commit"]) == 40
    assert "+a = 2" in record["patch"]


def test_what_changes_the_last_bits_is_recorded(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    found = environment(devices=[], data={}, speed={})["numerics"]
    assert found["onednn"] == "0"
    assert found["xla_flags"] == "--xla_cpu_enable_fast_math=true"
    assert found["tf32"] == "default"
    assert {"intra_op_threads", "inter_op_threads", "num_processors", "instructions"} <= set(found)
