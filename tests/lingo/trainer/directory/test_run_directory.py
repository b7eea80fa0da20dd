"""The run directory: texts, rows, status; begun whole or not at all."""

import json
import os
import pathlib

import pytest

from lingo.config.params import ParamError
from lingo.config.source_files import SourceFile
from lingo.storage.files import DirectoryLocked, StorageError
from lingo.storage.rows import Rows
from lingo.trainer.directory.run_directory import MAX_BYTES, RunDirectory, flags_text
from lingo.trainer.summaries.summaries import Summaries


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


TEXTS = {"config.json": "{}\n", "config.txt": "a = 1\n", "weights.txt": "w\n"}


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_failure_before_the_first_write_leaves_everything_as_it_was(tmp_path, name):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RuntimeError), RunDirectory(tmp_path / name).lock():
        raise RuntimeError
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_run_that_was_begun_stays(tmp_path):
    run = RunDirectory(tmp_path / "run")

    def begin_and_fail():
        with run.lock():
            run.write(TEXTS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        begin_and_fail()
    assert run.exists
    assert run.read("config.txt") == "a = 1\n"


def test_making_the_object_touches_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert not run.exists
    assert run.status() is None
    assert run.read("config.json") is None
    assert run.metrics.read() == []
    run.metrics.cut(0)
    assert os.listdir(tmp_path) == []


def test_a_changed_text_is_kept_beside_the_new_one(run):
    for text in ("1", "1", "2", "3"):
        run.write({"flags.txt": text})
    assert [run.read(f"flags{n}.txt") for n in ("", ".1", ".2", ".3")] == ["3", "1", "2", None]


def test_a_text_that_need_not_be_kept_is_replaced(run, tmp_path):
    for text in ("1", "2"):
        run.write({"a.txt": text}, replaced={"a.txt"})
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert run.read("a.txt") == "2"


def test_bytes_that_are_no_text_can_be_read_and_replaced(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff a")
    assert run.read("a.txt") == "\ufffd a"
    run.write({"a.txt": "b"})
    assert run.read("a.txt") == "b"


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", ".x", "-x", "a" * 65, "a\n"])
def test_the_name_of_an_evaluation_cannot_leave_the_directory(tmp_path, name):
    with pytest.raises(ParamError, match="cannot be part of a path"):
        RunDirectory(tmp_path).evaluation(name)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "a run needs a directory, got ''"),
        ("a\nb", "line breaks, other control characters"),
        ("a/b ", "spaces at its end get lost"),
        ("\udcff", "it is not UTF-8"),
        ("x" * 256, "a name in it at most 255"),
        ("x/" * 2000, "a path has at most 3500 bytes"),
    ],
)
def test_a_path_that_something_would_not_take_is_refused(path, message):
    with pytest.raises(ParamError, match=message):
        RunDirectory(path)


def test_a_path_may_have_what_a_shell_has_to_quote(tmp_path):
    run = RunDirectory(tmp_path / "é 日本 'x' \"y\" $z #1 = [a]")
    with run.lock():
        run.write(TEXTS)
    assert run.exists


def test_what_nobody_wrote_is_not_read(run, tmp_path):
    os.mkfifo(tmp_path / "STATUS")
    (tmp_path / "config.txt").mkdir()
    with open(tmp_path / "weights.txt", "wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert (run.status(), run.read("config.txt"), run.read("weights.txt")) == (None, None, None)


# ---- what cannot be written ----------------------------------------------------------------------


def test_a_run_that_could_not_begin_leaves_nothing(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(StorageError, match=r"config\.json"):
        RunDirectory(tmp_path).write({"config.json": "{}", "config.txt": "a = 1\n"})
    assert os.listdir(tmp_path) == ["config.json"]


def test_an_old_text_is_kept_once_though_a_crash_came_between(run, tmp_path):
    run.write({"config.json": "old"})
    (tmp_path / "config.1.json").write_text("old")  # the new one was not written any more
    run.write({"config.json": "new"})
    assert sorted(os.listdir(tmp_path)) == ["config.1.json", "config.json"]
    run.write({"config.json": "old"})
    run.write({"config.json": "new"})
    kept = [(tmp_path / f"config.{i}.json").read_text() for i in (1, 2, 3)]
    assert kept == ["old", "new", "old"]


def test_a_status_that_cannot_be_written_is_a_warning_unless_it_says_done(tmp_path, caplog):
    (tmp_path / "STATUS").mkdir()
    RunDirectory(tmp_path).set_status("running", 5)
    assert "STATUS" in caplog.text
    for state in ("done", "done (early)"):
        with pytest.raises(StorageError, match="STATUS"):
            RunDirectory(tmp_path).set_status(state, 5)


def test_a_directory_that_took_the_place_of_the_locked_one_is_not_written_to(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.lock():
        run.check_there()
        run.path.rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="moved or deleted"):
            run.check_there()
        with (
            RunDirectory(run.path).lock(),  # another process begins here
            pytest.raises(StorageError, match="moved or deleted"),
        ):
            run.check_there()
    assert not run.path.exists()


def test_what_a_killed_process_was_writing_is_cleared_when_the_next_one_begins(tmp_path):
    (tmp_path / ".tmp-config.json-4711").write_text("{")
    with RunDirectory(tmp_path).lock():
        assert os.listdir(tmp_path) == [".lock"]


def test_rows_of_later_steps_are_cut_also_those_of_evaluations_beside_the_training(run, tmp_path):
    (tmp_path / "eval_a").mkdir()
    beside = Rows(tmp_path / "eval_a" / "metrics.jsonl")
    for rows in (run.metrics, run.vectors, beside):
        for step in (1, 2):
            rows.append({"step": step})
    run.cut(1)
    assert [rows.read() for rows in (run.metrics, run.vectors, beside)] == [[{"step": 1}]] * 3


FILES = ["audit.jsonl", "metrics.jsonl", "vectors.jsonl"]
FOLDERS = ["train", "checkpoints", "profile", "source", "eval_same"]


@pytest.mark.parametrize("name", FILES + FOLDERS)
def test_a_link_in_the_place_of_what_is_written_is_refused(tmp_path, name):
    run = RunDirectory(tmp_path / "run")
    with run.lock():
        run.write(TEXTS)
    (tmp_path / "elsewhere").mkdir()
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"run/{name}: it is a link"), run.lock():
        pytest.fail("it is locked")
    (run.path / name).unlink()
    (tmp_path / "alias").symlink_to(run.path)
    with RunDirectory(tmp_path / "alias").lock():  # the run directory itself may be one
        pass


@pytest.mark.parametrize("name", ["source", "source/layers"])
def test_a_run_that_cannot_begin_deletes_nothing_behind_a_link(tmp_path, name):
    (tmp_path / "elsewhere/layers").mkdir(parents=True)
    for file in (own := [tmp_path / "elsewhere/a.py", tmp_path / "elsewhere/layers/a.py"]):
        file.write_text("mine")
    run = RunDirectory(tmp_path / "run")
    source = {"layers/a.py": SourceFile("/a.py", "0", b"kept"), "a.py": SourceFile("/a", "0", b"k")}
    with run.lock():
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match=f"{name}.* a link"):
            run.write(TEXTS, source=source)
        assert not (run.path / "config.json").exists()
    assert [file.read_text() for file in own] == ["mine"] * 2


def test_rows_of_an_evaluation_that_is_a_link_are_not_cut(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    beside = Rows(tmp_path / "elsewhere/metrics.jsonl")
    beside.append({"step": 2})
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / "eval_a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"eval_a/metrics\.jsonl: it is a link"):
        run.cut(1)
    assert beside.read() == [{"step": 2}]


# ---- processes that do not write -----------------------------------------------------------------


def test_a_process_that_is_not_the_leader_writes_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run", enabled=False)
    with run.lock(), Summaries(run, step=0) as summaries:
        run.write({"config.json": "{}"})
        run.set_status("running", 0)
        summaries.start_run({"x": 1})
        summaries.write_step(1, {"loss/total": 1.0})
        summaries.write_evaluations(1, {"same": {"eval/loss": 1.0}})
        summaries.write_text("config", "a", step=0)
        summaries.cut(0)
        summaries.on_end(None, "done")
        run.check_there()
    assert list(tmp_path.iterdir()) == []


def test_what_the_leader_reports_is_not_looked_at(tmp_path):
    RunDirectory(tmp_path).metrics.append({"step": 1, "eval/loss": 1.0})
    run = RunDirectory(tmp_path, enabled=False)
    run.metrics.append({"step": 2, "eval/loss": 1.0})
    assert run.metrics.read() == []
    assert not run.is_evaluated(1)


def test_who_takes_over_writes_the_reports_that_the_leader_missed(tmp_path):
    RunDirectory(tmp_path).metrics.append({"step": 1, "loss/total": 1.0})
    run = RunDirectory(tmp_path, enabled=False)
    for step in (1, 2, 3):
        run.metrics.append({"step": step, "loss/total": float(step)})
    run.metrics.cut(2)
    with run.take_over() as leader:
        assert [row["step"] for row in leader.metrics.read()] == [1, 2]
    assert [row["step"] for row in RunDirectory(tmp_path).metrics.read()] == [1, 2]


def test_nobody_takes_over_from_a_leader_that_is_there(tmp_path):
    with (
        RunDirectory(tmp_path).lock(),
        pytest.raises(DirectoryLocked),
        RunDirectory(tmp_path, enabled=False).take_over(),
    ):
        pytest.fail("it did")


# ---- flags.txt -----------------------------------------------------------------------------------

FLAGGED = pathlib.Path("/runs/one")
CONFIG = json.dumps({"files": {"mine.py": {"path": "/a/mine.py", "sha256": ""}}})


def test_what_was_asked_for_comes_first():
    found = flags_text(
        FLAGGED, CONFIG, exp="a(b=1)", overrides=["b='c d'"], operational=["--devices=2"]
    )
    assert found == "--exp=a(b=1)\n--logdir=/runs/one\n--set=b='c d'\n--devices=2\n"


def test_without_that_the_run_goes_on_from_its_own_configuration():
    found = flags_text(FLAGGED, CONFIG, operational=["--devices=2"])
    assert found == "--run=/runs/one\n--trust=/a/mine.py\n--devices=2\n"


@pytest.mark.parametrize("odd", ["a\nb", "a\rb", "a\u2028b", " a", "a ", "\udcff", "a\x0cb"])
def test_so_it_does_where_a_flag_file_would_change_what_was_asked(odd):
    found = flags_text(FLAGGED, CONFIG, exp="a", overrides=[f"name={odd}"])
    kept = odd == " a"  # behind an equals sign
    assert found.startswith("--exp=a\n" if kept else "--run=/runs/one\n--trust=/a/mine.py\n")
    assert found.encode()
