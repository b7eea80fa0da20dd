"""The record of what a run ran on."""

from __future__ import annotations

import json
import subprocess

from lingo.train.record.environment import environment, git


def test_it_is_json_and_names_versions_devices_and_data():
    record = environment(devices=["cpu:0"], data={"bytes": 3})
    assert json.loads(json.dumps(record)) == record
    assert {"python", "tensorflow", "numpy"} <= record["versions"].keys()
    assert record["devices"] == ["cpu:0"]
    assert record["data"] == {"bytes": 3}


def run_git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_git_gives_commit_and_changes(tmp_path):
    code = tmp_path / "code.py"
    code.write_text("a = 1\n")
    run_git(tmp_path, "init")
    assert git(code) is None, "not tracked"
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-m", "first")
    assert git(code)["patch"] == ""
    code.write_text("a = 2\n")
    record = git(code)
    assert len(record["commit"]) == 40
    assert "+a = 2" in record["patch"]


def test_code_outside_of_git_has_none(tmp_path):
    assert git(tmp_path / "code.py") is None
