"""The directory of a sweep: one writer, one sweep, files that a machine reads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lingo.config.params import ParamError
from lingo.storage.lock import DirectoryLocked
from lingo.study.directory import ChangedSweep, SweepDirectory
from lingo.study.metric import Metric
from lingo.study.trial import Result

ASKED = {"format": 1, "sweep": ["a=1,2"], "num_trials": 2}


def test_a_second_sweep_is_kept_out(tmp_path) -> None:
    code = """
import pathlib, sys
from lingo.study.directory import SweepDirectory
with SweepDirectory(pathlib.Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "sweep")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(DirectoryLocked, match=f"process {other.pid}"),
            SweepDirectory(tmp_path / "sweep").locked(),
        ):
            pass
        other.kill()
    with SweepDirectory(tmp_path / "sweep").locked():
        pass


def test_the_same_sweep_goes_on_and_another_is_refused(tmp_path) -> None:
    directory = SweepDirectory(tmp_path)
    directory.check(ASKED, fixed=["sweep"])
    directory.begin(ASKED)
    directory.check(ASKED | {"num_trials": 3}, fixed=["sweep"])
    with pytest.raises(ChangedSweep, match=r"sweep: a=1,2 -> a=1\nSweep in another directory"):
        directory.check(ASKED | {"sweep": ["a=1"]}, fixed=["sweep"])
    with pytest.raises(ChangedSweep, match="format: 1 -> 2"):
        directory.check(ASKED | {"format": 2}, fixed=["sweep"])


def test_the_directory_of_a_run_takes_no_sweep(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ParamError, match="is the directory of a run"):
        SweepDirectory(tmp_path).check(ASKED, fixed=[])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff"])
def test_a_file_that_no_sweep_wrote_is_named(tmp_path, content) -> None:
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(ParamError, match=r"sweep\.json (is not what|cannot be read)"):
        SweepDirectory(tmp_path).check(ASKED, fixed=[])


def test_results_are_kept_for_programs_the_best_first(tmp_path, request_for) -> None:
    request = request_for("a=1,2")
    results = [
        Result(request.trial(1, {"a": "2"}), "done", 2.0, 7, 0),
        Result(request.trial(0, {"a": "1"}), "failed", 1.0, 3, 8),
    ]
    SweepDirectory(tmp_path).record(results, Metric("loss/total", "max"))
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["best"] == "001-a-2"
    assert (found["metric"], found["goal"]) == ("loss/total", "max")
    assert found["trials"][1] == {
        "number": 0,
        "name": "000-a-1",
        "values": {"a": "1"},
        "state": "failed",
        "value": 1.0,
        "step": 3,
        "exit_code": 8,
        "command": results[1].trial.command,
    }


def test_where_none_is_done_none_is_best(tmp_path, request_for) -> None:
    failed = Result(request_for("a=1").trial(0, {"a": "1"}), "failed", 1.0, 3, 8)
    SweepDirectory(tmp_path).record([failed], Metric("loss/total", "max"))
    assert json.loads((tmp_path / "results.json").read_text())["best"] is None
