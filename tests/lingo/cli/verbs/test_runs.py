"""`lingo runs`: what it reads of real and of damaged runs."""

import csv
import io
import json
import os

import pytest

from lingo.study.runs import find_runs, summarize
from lingo.trainer import run as trainer
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.request import Request

pytestmark = pytest.mark.usefixtures("once_compiled")


def train(params, directory, **options):
    trainer.train(Request(params, "{}", "", **options), RunDirectory(directory))


@pytest.fixture
def runs(experiment, text, tmp_path):
    """Two runs of two steps, the second with a metric, a note and a tag, and no run."""
    folder = tmp_path / "runs"
    train(experiment(text, max_steps=2), folder / "plain")
    params = experiment(text, max_steps=2)
    params.evaluate.set(metric="same/loss", every_steps=1)
    train(params, folder / "group/noted", note="half the rate", tags=["small", "rate"])
    (folder / "empty").mkdir()
    for age, name in enumerate(["group/noted", "plain"]):
        os.utime(folder / name / "metrics.jsonl", (2e9 - 3600 * age,) * 2)
        os.utime(folder / name / "config.json", (1e9,) * 2)
    return folder


def test_runs_are_listed_the_latest_first(runs, lingo):
    head, first, second = lingo("runs", str(runs)).out.splitlines()
    assert head.split() == [
        "run", "experiment", "state", "step", "metric", "value", "updated", "tags", "note",
    ]  # fmt: skip
    assert f"{runs}/group/noted" in first
    assert "small,rate  half the rate" in first
    assert f"{runs}/plain" in second


def test_a_run_is_compared_by_its_metric_or_by_its_loss(runs):
    origin = {"name": "", "file": "/home/me/own.py", "function": "small"}
    config = {"experiment": origin, "params": {"evaluate": {"metric": "same/loss"}}}
    (runs / "group/noted/config.json").write_text(json.dumps(config))
    noted, plain = (summarize(path) for path in find_runs(runs))
    lines = (runs / "group/noted/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    losses = [row["eval/loss"] for row in rows if "eval/loss" in row]
    assert noted.experiment == "own.py:small"
    assert (noted.metric, noted.value) == ("best same/loss", min(losses))
    assert (plain.metric, plain.state, plain.step) == ("last eval/loss", "done", 2)
    assert summarize(plain.path, "loss/total").value > 0
    assert summarize(plain.path, "other/metric").value is None


def test_a_metric_that_no_run_has_is_told(runs, lingo):
    said = lingo("runs", str(runs), "--metric=losss").err
    assert "no run has reported 'losss': write input/metric, such as heldout/loss" in said


def test_tags_choose_and_csv_has_all_cells(runs, lingo):
    out = lingo("runs", str(runs), "--tag=small", "--tag=rate", "--csv").out
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["run"], row["tags"], row["step"]) == (f"{runs}/group/noted", "small,rate", "2")
    assert row["updated"].startswith("2033-05-18")
    assert lingo("runs", str(runs), "--tag=large").out == f"no runs below {runs} with these tags\n"


def test_a_resumed_run_keeps_notes_that_are_not_given_again(runs, experiment, text):
    params = experiment(text, max_steps=3)
    params.evaluate.set(metric="same/loss", every_steps=1)
    train(params, runs / "group/noted", tags=["final"])
    notes = summarize(runs / "group/noted").notes
    assert (notes.note, notes.tags) == ("half the rate", ("final",))
    train(params.set(max_steps=4), runs / "group/noted", tags=[""])
    assert summarize(runs / "group/noted").notes.tags == ()


def test_a_run_whose_process_is_gone_is_killed(runs):
    (runs / "plain/STATUS").write_text("running at step 1\n")
    holder = json.loads((runs / "plain/.lock").read_text())
    assert summarize(runs / "plain").state == "running"
    (runs / "plain/.lock").write_text(json.dumps(holder | {"pid": 2**22 + 1}))
    assert summarize(runs / "plain").state == "killed"


def test_damaged_files_leave_cells_empty(runs):
    for name in ("config.json", "metrics.jsonl", "STATUS", "notes.json"):
        (runs / "group/noted" / name).write_bytes(b"\x00[")
    one = summarize(runs / "group/noted")
    assert (one.experiment, one.state, one.step, one.metric, one.value) == ("", "", None, "", None)
    assert one.notes == ("", ())


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--note=a\nb", r"note='a\\nb': a note is one line, at most 1000 long"),
        ("--tag=a b", "tag='a b': a tag is one word without commas"),
    ],
)
def test_notes_that_would_break_the_table_are_refused(lingo, tmp_path, flag, wrong):
    command = ("train", "--exp=tiny(model_dim=16, num_layers=1)", "--set=max_steps=1", flag)
    result = lingo(*command, f"--logdir={tmp_path}/run")
    assert result.code == 2
    assert wrong.replace("\\\\", "\\") in result.err


def test_a_folder_that_is_not_there_is_refused(lingo, tmp_path):
    assert "is not a directory: name the one that holds runs" in lingo("runs", f"{tmp_path}/x").err
