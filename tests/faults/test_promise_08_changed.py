"""Promise 8: a changed configuration stops with the difference, field by field."""

import json


def contents(folder):
    """Returns the bytes of every file below a folder but the lock, which says who came last."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_another_configuration_stops_and_leaves_everything_as_it_is(again, tmp_path):
    before = contents(tmp_path / "run")
    done = again(
        "--set=optimizer.learning_rate=0.02",
        "--set=task.model.dim=16",
        "--set=seed=5",
        "--set=train_input.batch_size=2",
        "--set=TransformerLayer=Remat(layer=_)",
        "--set=max_steps=20",
    )
    assert done.returncode == 7
    for change in (
        "  optimizer.learning_rate: 0.01 -> 0.02",
        "  task.model.dim: 8 -> 16",
        "  seed: 0 -> 5",
        "  train_input.batch_size: 4 -> 2",
        "  task.model.stack.layer: TransformerLayer -> Remat",
    ):
        assert f"{change}\n" in done.stderr
    assert "max_steps" not in done.stderr, "it may change"
    assert "--allow_change" in done.stderr
    assert f"lingo train --run={tmp_path / 'run'}\n" in done.stderr
    assert contents(tmp_path / "run") == before


def test_how_a_run_is_carried_out_may_change_and_is_recorded(again, tmp_path):
    done = again("--set=max_steps=13", "--set=checkpoint.keep=1")
    assert done.returncode == 0, done.stderr
    assert "changed: max_steps: 12 -> 13\n" in done.stdout
    assert "changed: checkpoint.keep: 10 -> 1\n" in done.stdout
    assert "max_steps = 13\n" in (tmp_path / "run" / "config.txt").read_text()
    assert "max_steps = 12\n" in (tmp_path / "run" / "config.1.txt").read_text()
    overrides = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]
    assert overrides["overrides"] == ["max_steps=13", "checkpoint.keep=1"]


def test_what_is_allowed_to_change_is_kept_both_ways(again, tmp_path):
    flags = ("--set=max_steps=13", "--set=optimizer.learning_rate=0.02")
    done = again(*flags, "--allow_change")
    assert done.returncode == 0, done.stderr
    assert "changed: optimizer.learning_rate: 0.01 -> 0.02\n" in done.stdout
    assert "learning_rate = 0.02\n" in (tmp_path / "run" / "config.txt").read_text()
    assert "learning_rate = 0.01\n" in (tmp_path / "run" / "config.1.txt").read_text()
    refused = again("--set=max_steps=14")
    assert refused.returncode == 7, "it is another run now"
    assert "optimizer.learning_rate: 0.02 -> 0.01\n" in refused.stderr
