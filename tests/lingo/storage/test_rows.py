"""Rows of steps: whole, each step once, cut where steps are done again; and STATUS."""

import json
import os
from typing import get_args

import pytest

from lingo.storage.files import StorageError
from lingo.storage.rows import Rows, State, Status, parse_status


@pytest.fixture
def rows(tmp_path):
    return Rows(tmp_path / "rows.jsonl")


def steps(rows):
    return [row["step"] for row in rows.read()]


def test_making_them_touches_nothing(rows):
    assert rows.read() == []
    rows.cut(0)
    assert os.listdir(rows.path.parent) == []


def test_rows_come_back_as_written(rows):
    written = [{"step": 1, "time": 0.5, "loss/total": 0.1}, {"step": 2, "a": [1e-300, 2.0]}]
    for row in written:
        rows.append(row)
    assert rows.read() == Rows(rows.path).read() == written


def test_every_row_is_json_whatever_the_numbers(rows):
    nan, inf = float("nan"), float("inf")
    rows.append({"step": 1, "a": nan, "b": inf, "c": 1.0, "d": [nan, 2.0]})
    row = json.loads(rows.path.read_text(), parse_constant=pytest.fail)
    assert row == {"step": 1, "a": None, "b": None, "c": 1.0, "d": [None, 2.0]}


def test_two_rows_of_a_step_are_one_also_for_another_process(rows):
    rows.append({"step": 1, "a": 1})
    rows.append({"step": 2})
    again = Rows(rows.path)
    again.cut(1)
    again.append({"step": 1, "b": 2})
    assert rows.read() == [{"step": 1, "a": 1, "b": 2}]


@pytest.mark.parametrize(("torn", "left"), [('{"step": 2, "lo', [1]), ('{"step": 2}', [1, 2])])
def test_a_row_torn_by_a_crash_does_no_harm(rows, torn, left):
    rows.path.write_text('{"step": 1}\n' + torn)
    rows.cut(5)
    rows.append({"step": 6})
    assert steps(rows) == [*left, 6]


def test_what_is_no_row_is_dropped_with_a_warning_that_names_it(rows, caplog):
    rows.path.write_bytes(b'{"step": 1}\n\xff\n[2]\n{"step": 3}\n{"st')
    rows.cut(5)
    assert caplog.messages == [f"{rows.path}: dropped lines that are not rows: line 2, 3"]
    assert rows.path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_hostile_rows_are_left_out(rows):
    hostile = ["[" * 100_000, '{"step": ' * 50_000, "9" * 10_000, "\0"]
    rows.path.write_text("\n".join(['{"step": 1}', *hostile, '{"step": 2}', ""]))
    assert steps(rows) == [1, 2]


def test_a_pipe_has_no_rows(rows):
    os.mkfifo(rows.path)
    assert rows.read() == []


def test_rows_that_cannot_be_written_count_and_are_written_with_the_next(rows):
    rows.path.mkdir()
    for row in ({"step": 1, "a": 1}, {"step": 1, "b": 2}, {"step": 2}):
        with pytest.raises(StorageError):
            rows.append(row)
    assert rows.num_unwritten == 2
    assert rows.read() == [{"step": 1, "a": 1, "b": 2}, {"step": 2}]
    rows.path.rmdir()
    rows.append({"step": 3})
    assert rows.num_unwritten == 0
    assert steps(Rows(rows.path)) == [1, 2, 3]


# ---- of a process that does not write


def test_rows_of_a_process_that_does_not_write_are_written_where_they_are_missing(rows):
    rows.append({"step": 1, "a": 1.0})
    other = Rows(rows.path, enabled=False)
    for row in ({"step": 1, "a": 1.0}, {"step": 2, "a": [2.0]}, {"step": 3}):
        other.append(row)
    other.cut(2)
    assert steps(Rows(rows.path)) == [1]
    assert (other.read(), other.num_unwritten) == ([], 0)
    other.write_missed()
    assert rows.read() == [{"step": 1, "a": 1.0}, {"step": 2, "a": [2.0]}]


def test_an_evaluation_that_is_missing_and_a_line_cut_short_are_written_again(rows):
    other = Rows(rows.path, enabled=False)
    for row in ({"step": 1, "a": 1.0}, {"step": 1, "eval": 2.0}, {"step": 2, "a": 3.0}):
        other.append(row)
    rows.append({"step": 1, "a": 1.0})
    with rows.path.open("a") as file:
        file.write('{"step": 1, "ev')
    other.write_missed()
    assert rows.read() == [{"step": 1, "a": 1.0, "eval": 2.0}, {"step": 2, "a": 3.0}]


# ---- STATUS --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", get_args(State))
def test_what_is_written_is_read(state):
    assert parse_status(Status(state, 200).line) == Status(state, 200)


@pytest.mark.parametrize(
    "text", ["", "hello", "done at step 5", "done at step -1\n", f"done at step {'9' * 5000}\n"]
)
def test_anything_else_says_nothing(text):
    assert parse_status(text) is None


def test_a_run_may_be_done_early():
    over = [state for state in get_args(State) if Status(state, 1).is_over]
    assert over == ["done", "done (early)", "failed"]
    done = [state for state in get_args(State) if Status(state, 1).is_done]
    assert done == ["done", "done (early)"]
