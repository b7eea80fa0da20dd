"""Promise 5: nothing that is not finite is applied or saved; it is counted, named, and too much."""

import json
import signal

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_checkpoint

SPIKE = ("--set=guard.spike_steps=3", "--set=guard.spike_deviations=1.0")


def tensors(runs, name, step):
    found = open_checkpoint(store.step_path(runs.folder / name / "checkpoints", step))
    return found.read(found.tensors)


def rows(runs, name):
    lines = (runs.folder / name / "metrics.jsonl").read_text().splitlines()
    return {row["step"]: row for row in map(json.loads, lines)}


def test_once_it_is_left_out_and_training_goes_on(runs):
    flags = ("--audit", "--set=checkpoint.every_steps=1", "--set=checkpoint.keep=20")
    done = runs.train("run", *flags, inject="batch:nan@4")
    assert done.returncode == 0, done.stderr
    assert "step 5  batch/weights is not finite" in done.stdout
    before, after = tensors(runs, "run", 4), tensors(runs, "run", 5)
    assert any(name.startswith("slots/") for name in before)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    found = rows(runs, "run")
    assert [step for step, row in found.items() if row["learner/skipped"]] == [5]
    assert found[12]["learner/skipped_total"] == 1
    assert any((tensors(runs, "run", 6)[name] != after[name]).any() for name in after)


def test_for_ever_it_stops_and_says_where_to_look(runs):
    flags = ("--set=guard.max_skipped_steps=3",)
    failed = runs.train("run", *flags, inject="batch:nan@4-99")
    assert failed.returncode == 8
    dump = runs.folder / "run/numeric_failure.json"
    assert str(dump) in failed.stderr
    assert "3 times in a row" in failed.stderr
    content = json.loads(dump.read_text())
    assert content["step"] == 7
    assert content["first_non_finite"] == "batch/weights"
    assert [step["examples"] for step in content["steps"]] == [
        list(range(4 * batch, 4 * batch + 4)) for batch in (4, 5, 6)
    ]
    assert runs.status("run") == "failed at step 7"
    for value in tensors(runs, "run", runs.checkpoints("run")[-1]).values():
        assert np.isfinite(value).all()
    again = runs.train("run", *flags)
    assert again.returncode == 8, "until the guard is changed"
    assert str(dump) in again.stderr
    done = runs.train("run", "--set=guard.max_skipped_steps=4")
    assert done.returncode == 0, done.stderr
    assert runs.status("run") == "done at step 12"


@pytest.mark.parametrize(
    ("fault", "policy", "instant"),
    [
        (
            "batch:nan@7-8",
            ("guard.on_non_finite=rewind", "guard.max_skipped_steps=2"),
            "report:kill@8",
        ),
        ("batch:garble@8", ("guard.on_spike=rewind",), "commit:kill@9"),
    ],
    ids=["not finite", "spike"],
)
def test_a_run_can_go_back_and_a_kill_on_the_way_changes_nothing(runs, fault, policy, instant):
    flags = ("--audit", *SPIKE, *(f"--set={setting}" for setting in policy))
    done = runs.train("whole", *flags, inject=fault)
    assert done.returncode == 0, done.stderr
    assert "back to step 6, on with batch 9" in done.stdout
    whole = (runs.folder / "whole/audit.jsonl").read_text()
    batches = [json.loads(line)["batch"] for line in whole.splitlines()]
    assert batches == [0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14]
    killed = runs.train("run", *flags, inject=f"{fault} {instant}")
    assert killed.returncode == -signal.SIGKILL
    resumed = runs.train("run", *flags, inject=fault)
    assert resumed.returncode == 0, resumed.stderr
    assert (runs.folder / "run/audit.jsonl").read_text() == whole
    assert runs.digests("run") == runs.digests("whole")
