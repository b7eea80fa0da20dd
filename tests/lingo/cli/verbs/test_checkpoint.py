"""Looking at checkpoints: which there are, what one holds, whether they are sound."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingo.checkpoints import checkpoint, store
from lingo.checkpoints.checkpoint import digest
from lingo.checkpoints.store import Retention
from lingo.cli.verbs import checkpoint as verb

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def run(tmp_path: pathlib.Path, lingo: Callable) -> pathlib.Path:
    """A run with checkpoints of steps 10 to 50, that of step 30 the best; 50 was not due."""
    directory = tmp_path / "run"
    directory.mkdir()
    checkpoint = "checkpoint=Checkpointing(keep_best=1,keep=2,every_steps=20,keep_every_steps=20)"
    inputs = "eval_inputs={'same': ToyInput(batch_size=1)}"
    sets = (inputs, "evaluate.metric=same/loss", "evaluate.every_steps=20", checkpoint)
    overrides = [f"--set={text}" for text in sets]
    shown = lingo("show", "--exp=narrow", *overrides, "--format=json")
    assert shown.code == 0, shown.err
    (directory / "config.json").write_text(shown.out)
    rows = [{"step": step, "eval/loss": abs(step - 30)} for step in range(10, 60, 10)]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for step in range(10, 60, 10):
        save(directory, step)
    return directory


def save(directory: pathlib.Path, step: int, **metadata: Any) -> None:
    position = {"step": step, "examples": 2 * step, "epoch": 0}
    tensors = {"weights/stack/w": W * step, "slots/m/stack/w": W}
    store.save(
        directory / "checkpoints",
        step=step,
        tensors=tensors.items(),
        metadata={"seed": 3, "data_position": position, **metadata},
        retention=Retention(10),
    )


def damage(directory: pathlib.Path, step: int) -> None:
    file = directory / f"checkpoints/step_{step:08d}/tensors.index"
    file.write_bytes(bytes(file.stat().st_size))


def test_a_list_says_what_stays_and_why(lingo: Callable, run: pathlib.Path) -> None:
    done = lingo("checkpoint", "list", "--run=run")
    assert (done.code, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head.split() == ["step", "written", "bytes", "marks"]
    marks = {line.split()[0]: "".join(line.split()[4:]) for line in lines}
    latest = {"40": "latest,every,rewind", "50": "latest"}
    assert marks == {"10": "-", "20": "every", "30": "best", **latest}


def test_a_list_in_json_has_what_there_is_to_know(lingo: Callable, run: pathlib.Path) -> None:
    store.quarantine(run / "checkpoints/step_00000010")
    (run / "checkpoints/step_00000030/tensors.index").unlink()
    (run / "checkpoints/step_00000060").write_text("no directory")
    said = json.loads(lingo("checkpoint", "list", "--run=run", "--format=json").out)
    assert said["set_aside"] == ["step_00000010.corrupt-1"]
    found = {row["step"]: row for row in said["checkpoints"]}
    assert sorted(found) == [20, 30, 40, 50, 60]
    assert found[50]["damage"] is None
    assert found[50]["bytes"] > 2 * W.nbytes
    assert found[50]["time"] > 1.7e9
    assert found[30]["damage"] == "tensors.index: No such file or directory"
    assert (found[60]["damage"], found[60]["bytes"]) == ("MANIFEST.json: Not a directory", None)


def test_a_list_needs_no_configuration(lingo: Callable, run: pathlib.Path) -> None:
    (run / "config.json").write_text("{}")
    done = lingo("checkpoint", "list", "--run=run")
    assert done.code == 0
    assert len(done.out.splitlines()) == 6
    assert done.err.startswith("note: no marks: ")
    (run / "config.json").unlink()
    assert lingo("checkpoint", "list", "--run=run").code == 0


def test_a_run_without_checkpoints_says_so(lingo: Callable, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert lingo("checkpoint", "list", "--run=.").out == ". has no checkpoint yet.\n"
    for word in ("inspect", "verify"):
        done = lingo("checkpoint", word, "--run=.")
        assert (done.code, "has no checkpoint" in done.err) == (3, True)


def test_what_is_inspected_has_digests_by_path(lingo: Callable, run: pathlib.Path) -> None:
    said = json.loads(lingo("checkpoint", "inspect", "--run=run", "--format=json").out)
    assert said["step"] == 50
    assert said["weights"] == {"stack/w": digest(W * 50)}
    assert said["data_position"] == {"step": 50, "examples": 100, "epoch": 0}
    assert said["metadata"]["seed"] == 3
    slot = {"shape": [2, 3], "dtype": "float32", "digest": digest(W)}
    assert said["tensors"]["slots/m/stack/w"] == slot
    lines = lingo("checkpoint", "inspect", "--run=run", "--step=20").out.splitlines()
    assert "step: 20" in lines
    assert f"{digest(W * 20)}  float32[2, 3]  weights/stack/w" in lines


def test_the_latest_that_is_sound_is_inspected(lingo: Callable, run: pathlib.Path) -> None:
    damage(run, 50)
    done = lingo("checkpoint", "inspect", "--run=run", "--step=latest", "--format=json")
    assert json.loads(done.out)["step"] == 40
    assert "note: passed over: run/checkpoints/step_00000050 is damaged: tensors.index" in done.err
    asked = lingo("checkpoint", "inspect", "--run=run", "--step=50")
    assert (asked.code, asked.out) == (3, "")
    assert "step_00000050 is damaged" in asked.err


def test_the_best_can_be_inspected(lingo: Callable, run: pathlib.Path) -> None:
    said = json.loads(
        lingo("checkpoint", "inspect", "--run=run", "--step=best", "--format=json").out
    )
    assert said["step"] == 30
    store.delete(run / "checkpoints/step_00000030")
    gone = lingo("checkpoint", "inspect", "--run=run", "--step=best")
    assert (gone.code, gone.out) == (3, "")
    assert "run has no checkpoint of step 30" in gone.err


@pytest.mark.parametrize(
    ("flags", "code", "lines"),
    [
        ([], 3, [*(f"step {step}: sound" for step in (10, 20, 30)), "step 40: damaged", "step 50"]),
        (["--step=40"], 3, ["step 40: damaged: tensors.index: its bytes have changed"]),
        (["--step=10"], 0, ["step 10: sound"]),
        (["--step=latest"], 0, ["step 50: sound"]),
    ],
)
def test_every_byte_is_verified(lingo, run, flags, code, lines):
    damage(run, 40)
    done = lingo("checkpoint", "verify", "--run=run", *flags)
    assert done.code == code
    found = done.out.splitlines()
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))
    said = json.loads(lingo("checkpoint", "verify", "--run=run", *flags, "--format=json").out)
    assert [row["damage"] is None for row in said["checkpoints"]] == ["sound" in f for f in found]


@pytest.mark.parametrize("word", ["list", "verify"])
def test_what_the_run_deletes_meanwhile_is_not_damaged(lingo, run, monkeypatch, word):
    opened = checkpoint.open_checkpoint

    def late(path: pathlib.Path) -> Any:
        if path.name == "step_00000020":
            store.delete(path)
        return opened(path)

    for module in (checkpoint, verb):
        monkeypatch.setattr(module, "open_checkpoint", late)
    done = lingo("checkpoint", word, "--run=run", "--format=json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)["checkpoints"]
    assert [(row["step"], row["damage"]) for row in rows] == [(n, None) for n in (10, 30, 40, 50)]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["checkpoint"], 2, "list|inspect|verify"),
        (["checkpoint", "list"], 2, "--run=DIR"),
        (["checkpoint", "list", "--run=nowhere"], 2, "is not a run directory"),
        (["checkpoint", "list", "--run=run", "--step=3"], 2, "leave out --step"),
        (["checkpoint", "inspect", "--run=run", "--step=last"], 2, "--step=last is not a step"),
        (["checkpoint", "verify", "--run=run", "--step=best"], 2, "--step=best is not a step"),
        (["checkpoint", "inspect", "--run=run", "--step=7"], 3, "it has 10, 20, 30, 40, 50"),
    ],
)
def test_a_mistake_is_one_line(lingo, run, arguments, code, said):
    done = lingo(*arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_names_that_nobody_gave_are_not_shown(lingo: Callable, run: pathlib.Path) -> None:
    (run / "checkpoints" / "step_00000050.corrupt-\x1b[2J").mkdir()
    assert "\x1b" not in lingo("checkpoint", "list", "--run=run").out


@pytest.mark.parametrize("word", ["list", "inspect", "verify"])
def test_nothing_in_the_run_is_changed(lingo: Callable, run: pathlib.Path, word: str) -> None:
    damage(run, 50)
    (run / "checkpoints/.tmp-60-1-0").mkdir()
    before = {path: path.lstat().st_mtime_ns for path in run.rglob("*")}
    assert lingo("checkpoint", word, "--run=run").code in (0, 3)
    assert {path: path.lstat().st_mtime_ns for path in run.rglob("*")} == before


def test_looking_and_verifying_do_not_import_tensorflow(run: pathlib.Path) -> None:
    code = (
        "import sys; from lingo.cli.main import main;"
        f"codes = [main(['checkpoint', word, '--run={run}']) for word in ('list', 'verify')];"
        "sys.exit(any(codes) or 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
