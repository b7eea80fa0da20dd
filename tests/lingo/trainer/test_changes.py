"""Resuming: what of a directory is believed, and what is refused."""

import pathlib
import shutil

import numpy as np
import pytest

import lingo
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import NoUsableCheckpoint
from lingo.config import serial
from lingo.optim import Cooldown
from lingo.trainer.changes import ChangedConfiguration, numeric_changes
from lingo.trainer.directory import environment
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.step_recorder import StepRecorder

pytestmark = pytest.mark.usefixtures("once_compiled")


def interrupt(self):
    raise KeyboardInterrupt


def test_other_data_is_refused(small, run, directory, tmp_path):
    run(small(max_steps=2), directory)
    (tmp_path / "text/9.txt").write_text("one more document")
    before = (directory / "metrics.jsonl").read_bytes()
    with pytest.raises(ChangedConfiguration, match="other data") as caught:
        run(small(), directory)
    assert caught.value.exit_code == 7
    assert (directory / "metrics.jsonl").read_bytes() == before
    lines = str(caught.value).splitlines()
    assert "  train.documents: 5 -> 6" in lines
    assert not any("tokenizer" in line for line in lines)


@pytest.mark.parametrize("left", ["config.json", "config.txt"])
def test_either_text_of_the_configuration_is_enough_to_see_a_change(small, run, directory, left):
    lingo.train(small(max_steps=2), directory)
    changed = small()
    changed.optimizer.learning_rate = 0.02
    for name in {"config.json", "config.txt"} - {left}:
        (directory / name).write_bytes(b"\xff\xfe garbage")
    with pytest.raises(ChangedConfiguration, match=r"optimizer.learning_rate: 0.01 -> 0.02\n"):
        run(changed, directory)
    (directory / left).unlink()
    with pytest.raises(ChangedConfiguration, match="missing, damaged or edited"):
        run(changed, directory)


def test_a_text_with_other_values_than_were_trained_is_not_believed(small, run, directory):
    lingo.train(small(max_steps=2), directory)
    resolved = directory / "config.txt"
    resolved.write_text(resolved.read_text().replace("learning_rate = 0.01", "learning_rate = 9.0"))
    assert run(small(max_steps=3), directory).step == 3


def test_an_edited_configuration_is_refused_by_what_the_checkpoint_records(small, run, directory):
    lingo.train(small(max_steps=2), directory)
    saved, resolved = directory / "config.json", directory / "config.txt"
    saved.write_text(saved.read_text().replace('"learning_rate": 0.01', '"learning_rate": 0.03'))
    edited = serial.read(saved).params
    assert edited.optimizer.learning_rate == 0.03
    with pytest.raises(ChangedConfiguration, match=r"optimizer.learning_rate: 0.01 -> 0.03\n"):
        run(edited, directory)
    for text in (resolved.read_text().replace("learning_rate = 0.01", "learning_rate = 0.03"), ""):
        resolved.write_text(text)
        with pytest.raises(ChangedConfiguration, match="missing, damaged or edited"):
            run(edited, directory)
    resolved.unlink()
    with pytest.raises(ChangedConfiguration, match="missing, damaged or edited"):
        run(edited, directory)
    assert run(small(max_steps=3), directory).step == 3, "the one that was trained is not refused"


def test_a_change_that_was_allowed_is_known_before_the_next_checkpoint(
    small, run, directory, monkeypatch
):
    lingo.train(small(max_steps=2), directory)
    changed = small(max_steps=4).set(seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(StepRecorder, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lingo.train(changed, directory, allow_change=True)
    with pytest.raises(ChangedConfiguration, match="seed: 1 -> 2"):
        run(small(max_steps=4).set(seed=2), directory)
    assert run(changed, directory).step == 4


@pytest.mark.parametrize(
    "name", ["weights.txt", "flags.txt", "environment.json", "config.txt", "config.json"]
)
def test_a_text_that_was_damaged_is_written_again(small, run, directory, name):
    run(small(max_steps=1).set(eval_inputs={}), directory)
    before = (directory / name).read_text()
    (directory / name).write_bytes(b"\xff\x00 garbage")
    run(small(max_steps=2).set(eval_inputs={}), directory)
    after = (directory / name).read_text()
    assert after.splitlines()[:1] == before.splitlines()[:1]


@pytest.mark.parametrize("status", ["done at step 2\n", None])
def test_a_run_whose_checkpoints_are_gone_does_not_start_again(small, run, directory, status):
    run(small(max_steps=2).set(eval_inputs={}), directory)
    shutil.rmtree(directory / "checkpoints")
    if status is None:
        (directory / "STATUS").unlink()
    before = (directory / "metrics.jsonl").read_bytes()
    with pytest.raises(NoUsableCheckpoint, match=r"holds no checkpoint, but .* step 2.*\n.*delete"):
        run(small(), directory)
    assert (directory / "metrics.jsonl").read_bytes() == before


def test_a_run_without_its_first_checkpoint_starts_again(small, run, rows, directory):
    run(small(max_steps=2).set(eval_inputs={}), directory)
    shutil.rmtree(directory / "checkpoints")
    (directory / "STATUS").write_text("running at step 0\n")
    changed = small(max_steps=1).set(eval_inputs={}, seed=1)
    assert run(changed, directory).step == 1, "nothing was trained that could be lost"
    assert [row["step"] for row in rows(directory)] == [1]


def test_the_environment_is_kept_beside_only_if_it_changed(small, run, directory, monkeypatch):
    monkeypatch.setattr(environment, "git", lambda file: None)  # someone may be editing
    for steps in (1, 2):
        run(small(max_steps=steps).set(eval_inputs={}), directory)
    assert not (directory / "environment.1.json").exists()
    monkeypatch.setenv("XLA_FLAGS", " ")
    run(small(max_steps=3).set(eval_inputs={}), directory)
    assert (directory / "environment.1.json").exists()


@pytest.mark.parametrize("known", [True, False])
def test_a_machine_that_computes_otherwise_is_said(known):
    before = {"versions": {"numpy": "1"}, "numerics": {"onednn": "0", "threads": 2}}
    found = Checkpoint(pathlib.Path(), {"metadata": before if known else {}})
    now = {"versions": {"numpy": "2"}, "numerics": {"onednn": "0", "threads": 4, "tf32": "1"}}
    expected = [
        "versions.numpy: 1 -> 2",
        "numerics.threads: 2 -> 4",
        "numerics.tf32: (absent) -> 1",
    ]
    assert [str(change) for change in numeric_changes(found, now)] == expected * known


def test_checkpoints_that_are_away_are_not_forgotten(small, run, directory, tmp_path, monkeypatch):
    away = tmp_path / "away"

    def unmounted(self):
        (directory / "checkpoints").rename(away)
        raise KeyboardInterrupt

    run(small(max_steps=2), directory)
    with monkeypatch.context() as patch:
        patch.setattr(StepRecorder, "write", unmounted)
        with pytest.raises(KeyboardInterrupt):
            run(small(), directory)
    assert (directory / "STATUS").read_text() == "stopped at step 2\n"
    with pytest.raises(NoUsableCheckpoint, match="STATUS says stopped at step 2"):
        run(small(), directory)
    away.rename(directory / "checkpoints")
    assert RunDirectory(directory).last_step() == 2


def test_a_schedule_that_ends_with_the_run_moves_and_says_so(small, run, directory, capsys):
    params = small(max_steps=2).set(eval_inputs={})
    params.optimizer.schedule = Cooldown.params(num_steps=2)
    run(params, directory)
    assert "ends with the run" not in capsys.readouterr().out
    run(params.copy().set(max_steps=4), directory)
    said = "changed: the learning rate, whose schedule ends with the run"
    assert said in capsys.readouterr().out
    rates = params.copy().set(max_steps=4).build().optimizer.rates(2)
    assert rates["learning_rate"] == np.float32(0.01)
