"""The run directory: texts, metrics, status; begun whole or not at all."""

from __future__ import annotations

import json
import os
from typing import get_args

import pytest

from lingo.config.params import ParamError
from lingo.train.record.lock import DirectoryLocked
from lingo.train.record.run_directory import RunDirectory, State, Status
from lingo.train.record.storage import StorageError

TEXTS = {"config.json": "{}\n", "config.txt": "a = 1\n", "weights.txt": "w\n"}


def test_a_failure_before_the_first_write_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), RunDirectory(tmp_path / "a" / "b").locked():
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_failure_in_a_directory_that_was_there_leaves_it_as_it_was(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RuntimeError), RunDirectory(tmp_path).locked():
        raise RuntimeError
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_run_that_was_begun_stays(tmp_path):
    run = RunDirectory(tmp_path / "run")

    def begin_and_fail():
        with run.locked():
            run.write(TEXTS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        begin_and_fail()
    assert run.exists
    assert run.read("config.txt") == "a = 1\n"


def test_two_writers_are_refused_and_the_first_goes_on(tmp_path):
    with RunDirectory(tmp_path / "run").locked() as run:
        with pytest.raises(DirectoryLocked), RunDirectory(tmp_path / "run").locked():
            pass
        run.write(TEXTS)
    with RunDirectory(tmp_path / "run").locked():
        pass


def test_making_the_object_touches_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert not run.exists
    assert run.status() is None
    assert run.read("config.json") is None
    assert run.read_metrics() == []
    run.cut_metrics(0)
    assert os.listdir(tmp_path) == []


def test_a_changed_text_is_kept_beside_the_new_one(tmp_path):
    run = RunDirectory(tmp_path)
    for text in ("1", "1", "2", "3"):
        run.write({"flags.txt": text})
    assert [run.read(f"flags{n}.txt") for n in ("", ".1", ".2", ".3")] == ["3", "1", "2", None]


def test_a_run_begins_with_its_last_text(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "weights.txt").mkdir()
    with pytest.raises(StorageError):
        run.write(TEXTS)
    assert not run.exists


def test_metrics_come_back_as_written(tmp_path):
    run = RunDirectory(tmp_path)
    rows = [{"step": 1, "time": 0.5, "loss/total": 0.1}, {"step": 2, "loss/total": 1e-300}]
    for row in rows:
        run.append_metrics(row)
    assert run.read_metrics() == rows


def test_every_row_is_json_whatever_the_numbers(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_metrics({"step": 1, "a": float("nan"), "b": float("inf"), "c": 1.0})
    line = run.metrics.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "a": None,
        "b": None,
        "c": 1.0,
    }


def test_rows_beyond_the_restored_step_are_cut_off(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 10, 20, 30):
        run.append_metrics({"step": step})
    run.cut_metrics(20)
    assert [row["step"] for row in run.read_metrics()] == [1, 10, 20]


@pytest.mark.parametrize(("torn", "left"), [('{"step": 2, "lo', [1]), ('{"step": 2}', [1, 2])])
def test_a_row_torn_by_a_crash_does_no_harm(tmp_path, torn, left):
    run = RunDirectory(tmp_path)
    run.metrics.write_text('{"step": 1}\n' + torn)
    run.cut_metrics(5)
    run.append_metrics({"step": 6})
    assert [row["step"] for row in run.read_metrics()] == [*left, 6]


def test_status_is_one_line(tmp_path):
    run = RunDirectory(tmp_path)
    run.set_status("running", 0)
    run.set_status("done", 200)
    assert (tmp_path / "STATUS").read_text() == "done at step 200\n"
    assert run.status() == Status("done", 200)


def test_a_run_may_be_done_early(tmp_path):
    run = RunDirectory(tmp_path)
    run.set_status("done (early)", 200)
    assert run.status() == Status("done (early)", 200)
    over = [state for state in get_args(State) if Status(state, 1).is_over]
    assert over == ["done", "done (early)", "failed"]


def test_a_run_needs_a_directory():
    with pytest.raises(ParamError, match="'' names none"):
        RunDirectory("")


def test_a_text_that_need_not_be_kept_is_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    for text in ("1", "2"):
        run.write({"a.txt": text}, replaced={"a.txt"})
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert run.read("a.txt") == "2"


def test_bytes_that_are_no_text_can_be_read_and_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff a")
    assert run.read("a.txt") == "\ufffd a"
    run.write({"a.txt": "b"})
    assert run.read("a.txt") == "b"


def test_rows_that_are_none_are_dropped_with_a_warning_that_names_them(tmp_path, caplog):
    run = RunDirectory(tmp_path)
    run.metrics.write_bytes(b'{"step": 1}\n\xff\n[2]\n{"step": 3}\n{"st')
    run.cut_metrics(5)
    assert caplog.messages == [f"{run.metrics}: dropped what is no row: line 2, 3"]
    assert run.metrics.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_nonsense_in_status_is_no_status(tmp_path):
    (tmp_path / "STATUS").write_text("hello")
    assert RunDirectory(tmp_path).status() is None


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x"])
def test_the_name_of_an_evaluation_cannot_leave_the_directory(tmp_path, name):
    with pytest.raises(ParamError, match="cannot be part of a path"):
        RunDirectory(tmp_path).evaluation(name)
