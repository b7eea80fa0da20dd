"""Predictions from the command line."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import lingo
from lingo.cli.main import main
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.examples import read_examples
from lingo.trainer.progress import Progress
from tests.stand_ins.buckets import memory_bucket

pytestmark = [
    pytest.mark.xdist_group("predict"),  # the run of the fixture is done once
    pytest.mark.usefixtures("once_compiled"),
]
SMALL = """
from lingo.config.registry import experiment
from lingo.data.record_source import TextFiles
from params.lm.source import tiny


@experiment
def small():
    cfg = tiny(model_dim=8, num_layers=1).set(max_steps=2)
    cfg.train_input.set(batch_size=2, length=16, source=TextFiles.params(pattern="FOLDER/*.txt"))
    cfg.eval_inputs = {"same": cfg.train_input.copy().set(repeat=False)}
    cfg.task.model.stack.layer.attention.num_heads = 1
    cfg.evaluate.every_steps = 2
    return cfg
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "text.txt").write_text("def f(x):\n    return x\n" * 9)
    (folder / "small.py").write_text(SMALL.replace("FOLDER", str(folder)))
    assert main(["train", f"--exp={folder}/small.py:small", f"--logdir={folder}/run"]) == 0
    return folder / "run"


@pytest.fixture
def command(run, tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return ["predict", f"--run={run}"]


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_an_evaluation_input_is_predicted_as_in_python(command, run, tmp_path, suffix, capsys):
    assert main([*command, "--input=same", f"--output=x{suffix}"]) == 0
    out, err = capsys.readouterr()
    model = lingo.load(run)
    expected = model.predict(model.experiment.eval_inputs["same"])
    assert out.splitlines()[0] == f"x{suffix}: {len(expected['tokens'])} examples at step 2"
    assert "  tokens: int32 [16] for each" in out.splitlines()
    assert err == ""
    found = read_examples(tmp_path / f"x{suffix}")
    assert list(found) == list(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])
    assert os.listdir(tmp_path) == [f"x{suffix}"]


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_the_arrays_of_a_file_are_predicted(command, run, tmp_path, suffix):
    model = lingo.load(run)
    batches = [model.experiment.train_input.batch(step) for step in range(3)]
    names = ("tokens", "segments", "positions")
    arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
    if suffix == ".npz":
        np.savez(tmp_path / "mine.npz", **arrays)
    else:
        rows = [{name: arrays[name][i].tolist() for name in names} for i in range(6)]
        (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = [f"--input=mine{suffix}", "--output=x.npz", "--batch_size=4", "--step=2"]
    assert main([*command, *flags]) == 0
    found, expected = read_examples(tmp_path / "x.npz"), model.predict(arrays)
    assert found.keys() == expected.keys() == {"tokens", "log_probs"}
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    np.testing.assert_allclose(found["log_probs"], expected["log_probs"], rtol=1e-5)


@pytest.mark.parametrize("name", ["mine.npz", "mine.jsonl"])
def test_what_is_in_a_bucket_is_predicted_as_a_file_is(command, tmp_path, name, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"tokens": [2, 5, 7 + i], "segments": [1] * 3, "positions": [0, 1, 2]} for i in (0, 1)]
    np.savez(tmp_path / "mine.npz", **{key: [row[key] for row in rows] for key in rows[0]})
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    address = f"memory://{memory_bucket()}"
    for path in tmp_path.glob("mine.*"):
        Bucket(address).put(path.name, path.read_bytes())
    for folder, output in ((".", "local.jsonl"), (address, "remote.jsonl")):
        assert main([*command, f"--input={folder}/{name}", f"--output={output}"]) == 0
    assert (tmp_path / "local.jsonl").read_bytes() == (tmp_path / "remote.jsonl").read_bytes()


def test_long_work_shows_how_much_is_done(command, monkeypatch, capsys):
    ticks = iter(range(0, 10**6, 20))
    initialize = Progress.__init__
    monkeypatch.setattr(
        Progress,
        "__init__",
        lambda self, **options: initialize(self, **options, clock=lambda: float(next(ticks))),
    )
    assert main([*command, "--input=same", "--output=x.npz"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "predicting same" in line]
    assert shown[-2] == "predicting same: 100%"
    assert shown[-1].startswith("predicting same: done in")


@pytest.mark.parametrize("runtime", ["Replicated", "Mesh(data=2)"])
def test_two_devices_predict_what_one_does(command, tmp_path, runtime):
    assert main([*command, "--input=same", "--output=one.npz"]) == 0
    flags = [f"--set=runtime={runtime}", "--devices=2", "--input=same", "--output=two.npz"]
    program = [sys.executable, "-P", "-m", "lingo.cli.main", *command, *flags]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    one, two = (read_examples(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert one.keys() == two.keys()
    np.testing.assert_array_equal(one["example_id"], two["example_id"])
    np.testing.assert_allclose(one["log_probs"], two["log_probs"], rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=x.npz"], "no input given: --input=NAME, an evaluation input, or FILE.npz or"),
        (["--input=same"], "no output given: --output=FILE.npz or FILE.jsonl"),
        (["--input=same", "--output=x.csv"], "x.csv: a table has one value in a column, but"),
        (["--input=same", "--output=x.tsv"], "--output=x.tsv is not the name of a FILE.npz or"),
        (["--input=same", "--output=old.npz"], "--output=old.npz exists: name another file, or"),
        (["--input=same", "--output=no/x.npz"], "--output=no/x.npz: there is no directory no"),
        (
            ["--input=sam", "--output=x.npz"],
            "--input=sam is neither an evaluation input (same) nor",
        ),
        (["--input=no.npz", "--output=x.npz"], "no.npz cannot be read: No such file or directory"),
        (["--input=old.npz", "--output=x.npz"], "no input of the experiment has an array 'token'."),
        (["--input=flat.npz", "--output=x.npz"], "'tokens' has shape [3], but needs 2 axes"),
        (["--input=text.npz", "--output=x.npz"], "'tokens' is float64, but needs int32"),
        (["--input=less.npz", "--output=x.npz"], "the batch has no 'tokens'"),
        (["--input=same", "--output=x.npz", "--batch_size=0"], "--batch_size=0"),
        (["--input=same", "--output=x.npz", "--step=first"], "--step=first is not a step"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_leaves_nothing(command, flags, message, tmp_path, capsys):
    files = {
        "old": {"token": np.zeros([2, 16], int)},
        "flat": {"tokens": np.zeros([3], int)},
        "text": {"tokens": np.full([2, 16], 0.5)},
        "less": {"segments": np.zeros([2, 16], int)},
    }
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    assert main([*command, *flags]) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["flat.npz", "less.npz", "old.npz", "text.npz"]


def test_a_run_that_is_none_and_a_step_that_is_not_there_are_told(command, tmp_path, capsys):
    flags = ["--input=same", "--output=x.npz"]
    assert main(["predict", "--run=nowhere", *flags]) == 2
    assert "nowhere is not a run directory" in capsys.readouterr().err
    assert main(["predict", *flags]) == 2
    assert "no run given: --run=DIR" in capsys.readouterr().err
    assert main([*command, *flags, "--step=99"]) == 3
    assert "no checkpoint of step 99" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_pictures_need_an_evaluation_input_and_a_task_that_shows_them(command, run, capsys):
    np.savez("mine.npz", tokens=np.zeros([2, 16], np.int32))
    assert main([*command, "--input=mine.npz", "--output=pictures/"]) == 2
    assert (
        "--input=mine.npz is not an evaluation input of the run (same)" in capsys.readouterr().err
    )
    assert main([*command, "--input=same", "--output=pictures/"]) != 0
    assert "shows no images of examples" in capsys.readouterr().err
    assert os.listdir() == ["mine.npz"]
