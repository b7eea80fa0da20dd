"""Resuming: what of a directory is believed, and what is refused."""

from __future__ import annotations

import pathlib
import shutil

import pytest

import lingo
from lingo.checkpoints.checkpoint import Checkpoint
from lingo.checkpoints.errors import CheckpointMismatch, NoUsableCheckpoint
from lingo.trainer.directory import environment
from lingo.trainer.directory.resume import ChangedConfiguration, last_step, numeric_changes
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.step_recorder import StepRecorder

pytestmark = pytest.mark.usefixtures("once_compiled")


def test_another_configuration_is_refused_field_by_field(experiment, run, text, tmp_path):
    run(experiment(text, max_steps=2), tmp_path / "run")
    changed = experiment(text)
    changed.optimizer.learning_rate = 0.02
    with pytest.raises(ChangedConfiguration, match=r"optimizer.learning_rate: 0.01 -> 0.02\n"):
        run(changed, tmp_path / "run")
    assert (tmp_path / "run/STATUS").read_text() == "done at step 2\n"
    assert run(changed, tmp_path / "run", allow_change=True).step == 6
    assert (tmp_path / "run/config.1.txt").exists()


def test_a_schedule_that_follows_max_steps_makes_it_a_change(experiment, run, text, tmp_path):
    first, second = experiment(text, max_steps=2), experiment(text, max_steps=4)
    first.optimizer.schedule.then.num_steps, second.optimizer.schedule.then.num_steps = 2, 4
    run(first, tmp_path / "run")
    with pytest.raises(ChangedConfiguration, match=r"optimizer.schedule.then.num_steps: 2 -> 4"):
        run(second, tmp_path / "run")


def test_other_data_is_refused(experiment, run, text, tmp_path):
    run(experiment(text, max_steps=2), tmp_path / "run")
    (tmp_path / "text/9.txt").write_text("one more document")
    with pytest.raises(ChangedConfiguration, match="other data") as caught:
        run(experiment(text), tmp_path / "run")
    lines = str(caught.value).splitlines()
    assert "  train.documents: 5 -> 6" in lines
    assert not any("tokenizer" in line for line in lines)


@pytest.mark.parametrize("left", ["config.json", "config.txt"])
def test_either_text_of_the_configuration_is_enough_to_see_a_change(
    experiment, run, text, tmp_path, left
):
    lingo.train(experiment(text, max_steps=2), tmp_path / "run")
    changed = experiment(text)
    changed.optimizer.learning_rate = 0.02
    for name in {"config.json", "config.txt"} - {left}:
        (tmp_path / "run" / name).write_bytes(b"\xff\xfe garbage")
    with pytest.raises(ChangedConfiguration, match=r"optimizer.learning_rate: 0.01 -> 0.02\n"):
        run(changed, tmp_path / "run")
    (tmp_path / "run" / left).unlink()
    with pytest.raises(ChangedConfiguration, match="missing or damaged"):
        run(changed, tmp_path / "run")


def test_a_text_with_other_values_than_were_trained_is_not_believed(
    experiment, run, text, tmp_path
):
    lingo.train(experiment(text, max_steps=2), tmp_path / "run")
    resolved = tmp_path / "run/config.txt"
    resolved.write_text(resolved.read_text().replace("learning_rate = 0.01", "learning_rate = 9.0"))
    assert run(experiment(text, max_steps=3), tmp_path / "run").step == 3


@pytest.mark.parametrize(
    "name", ["weights.txt", "flags.txt", "environment.json", "config.txt", "config.json"]
)
def test_a_text_that_was_damaged_is_written_again(experiment, run, text, tmp_path, name):
    run(experiment(text, max_steps=1).set(eval_inputs={}), tmp_path / "run")
    before = (tmp_path / "run" / name).read_text()
    (tmp_path / "run" / name).write_bytes(b"\xff\x00 garbage")
    run(experiment(text, max_steps=2).set(eval_inputs={}), tmp_path / "run")
    after = (tmp_path / "run" / name).read_text()
    assert after.splitlines()[:1] == before.splitlines()[:1]


def test_rows_that_are_damaged_are_dropped_with_a_warning(
    experiment, run, rows, text, tmp_path, caplog
):
    run(experiment(text, max_steps=2).set(eval_inputs={}), tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_bytes(b"\xff\xfe\n" + metrics.read_bytes())
    run(experiment(text, max_steps=3).set(eval_inputs={}), tmp_path / "run")
    assert caplog.messages == [f"{metrics}: dropped what is no row: line 1"]
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("status", ["done at step 2\n", None])
def test_a_run_whose_checkpoints_are_gone_does_not_start_again(
    experiment, run, text, tmp_path, status
):
    directory = tmp_path / "run"
    run(experiment(text, max_steps=2).set(eval_inputs={}), directory)
    shutil.rmtree(directory / "checkpoints")
    if status is None:
        (directory / "STATUS").unlink()
    before = (directory / "metrics.jsonl").read_bytes()
    with pytest.raises(NoUsableCheckpoint, match=r"holds no checkpoint, but .* step 2.*\n.*delete"):
        run(experiment(text), directory)
    assert (directory / "metrics.jsonl").read_bytes() == before


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    experiment, run, rows, text, tmp_path
):
    directory = tmp_path / "run"
    run(experiment(text, max_steps=2).set(eval_inputs={}), directory)
    shutil.rmtree(directory / "checkpoints")
    (directory / "STATUS").write_text("running at step 0\n")
    changed = experiment(text, max_steps=1).set(eval_inputs={}, seed=1)
    assert run(changed, directory).step == 1, "nothing was trained that could be lost"
    assert [row["step"] for row in rows(directory)] == [1]


def test_the_environment_is_kept_beside_only_if_it_changed(
    experiment, run, text, tmp_path, monkeypatch
):
    monkeypatch.setattr(environment, "git", lambda file: None)  # someone may be editing
    for steps in (1, 2):
        run(experiment(text, max_steps=steps).set(eval_inputs={}), tmp_path / "run")
    assert not (tmp_path / "run/environment.1.json").exists()
    monkeypatch.setenv("XLA_FLAGS", " ")
    run(experiment(text, max_steps=3).set(eval_inputs={}), tmp_path / "run")
    assert (tmp_path / "run/environment.1.json").exists()


def test_a_checkpoint_of_another_model_is_refused_by_name(experiment, run, text, tmp_path):
    run(experiment(text, max_steps=2), tmp_path / "run")
    wider = experiment(text)
    wider.task.model.dim = 16
    with pytest.raises(CheckpointMismatch, match=r"shape model/embedding/table"):
        run(wider, tmp_path / "run", allow_change=True)


@pytest.mark.parametrize("known", [True, False])
def test_a_machine_that_computes_otherwise_is_said(known: bool) -> None:
    before = {"versions": {"numpy": "1"}, "numerics": {"onednn": "0", "threads": 2}}
    found = Checkpoint(pathlib.Path(), {"metadata": before if known else {}})
    now = {"versions": {"numpy": "2"}, "numerics": {"onednn": "0", "threads": 4, "tf32": "1"}}
    expected = [
        "versions.numpy: 1 -> 2",
        "numerics.threads: 2 -> 4",
        "numerics.tf32: (absent) -> 1",
    ]
    assert [str(change) for change in numeric_changes(found, now)] == expected * known


def test_checkpoints_that_are_away_for_a_while_are_not_forgotten(
    experiment, run, text, tmp_path, monkeypatch
):
    directory, away = tmp_path / "run", tmp_path / "away"

    def unmounted(self: StepRecorder) -> None:
        (directory / "checkpoints").rename(away)
        raise KeyboardInterrupt

    run(experiment(text, max_steps=2), directory)
    with monkeypatch.context() as patch:
        patch.setattr(StepRecorder, "write", unmounted)
        with pytest.raises(KeyboardInterrupt):
            run(experiment(text), directory)
    assert (directory / "STATUS").read_text() == "stopped at step 2\n"
    with pytest.raises(NoUsableCheckpoint, match="STATUS says stopped at step 2"):
        run(experiment(text), directory)
    away.rename(directory / "checkpoints")
    assert last_step(RunDirectory(directory)) == 2
