"""Evaluating, as a user does, the run of one small model."""

from __future__ import annotations

import json
import shutil

import pytest

import lingo
from lingo.checkpoints.errors import DamagedCheckpoint, DeletedCheckpoint
from lingo.cli.main import main
from lingo.cli.verbs import eval

pytestmark = [
    pytest.mark.xdist_group("eval"),  # the run of the fixture is done once
    pytest.mark.usefixtures("once_compiled"),
]


def test_a_checkpoint_is_evaluated_on_every_input(run, capsys):
    assert main(["eval", f"--run={run}", "--step=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["first", "step=2"], ["second", "step=2"]]
    assert all("loss=" in line for line in lines)
    row = json.loads((run / "eval_first" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["step"] == 2
    assert f"loss={row['eval/loss']:.6g}" in lines[0]


@pytest.mark.parametrize(
    ("step", "error", "code", "said"),
    [
        (None, DeletedCheckpoint, 0, "passed over: {} was deleted while it was read"),
        (None, DamagedCheckpoint, 3, "passed over: {} is damaged"),
        (None, DamagedCheckpoint, 3, "can be used:\n  {} is damaged"),
        ("2", DeletedCheckpoint, 0, "passed over: {} was deleted while it was read"),
        ("2", DamagedCheckpoint, 3, ": {} is damaged: a: b"),
    ],
)
def test_another_checkpoint_is_evaluated_if_one_cannot_be_read(
    run, capsys, monkeypatch, tmp_path, step, error, code, said
):
    run = shutil.copytree(run, tmp_path / "run")
    path = run / "checkpoints/step_00000002"
    for other in {*path.parent.iterdir()} - {path}:  # of tests that trained on
        shutil.rmtree(other)
    failures = [error(path, "a", "b") if error is DamagedCheckpoint else error(path)]

    def evaluate(self, found, *, show_progress):
        assert found.path == path
        if failures:
            raise failures.pop()
        return []

    monkeypatch.setattr(eval.Evaluator, "evaluate_checkpoint", evaluate)
    options = [] if step is None else [f"--step={step}"]
    assert main(["eval", f"--run={run}", *options]) == code
    assert said.format(path) in capsys.readouterr().err


def test_an_evaluation_with_overrides_is_shown_and_not_kept(run, capsys):
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    override = "--set=eval_inputs['first'].max_batches=1"
    assert main(["eval", f"--run={run}", "--step=2", override]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("first  step=2  ")
    assert "the results are not kept" in err
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_an_evaluation_that_is_computed_elsewhere_is_kept(run, capsys):
    assert main(["eval", f"--run={run}", "--step=2", "--set=runtime.xla=True"]) == 0
    out, err = capsys.readouterr()
    assert "the results are not kept" not in err
    row = json.loads((run / "eval_first" / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"first  step=2  loss={row['eval/loss']:.6g}" in out


def test_watching_evaluates_what_was_not_and_ends_with_the_run(exp, tmp_path, capsys):
    run = tmp_path / "run"
    options = ["max_steps=3", "evaluate.metric=second/loss", "evaluate.every_steps=1"]
    sets = [f"--set={option}" for option in options]
    assert main(["train", f"--exp={exp}", f"--logdir={run}", *sets]) == 0
    capsys.readouterr()
    assert main(["eval", f"--run={run}", "--watch"]) == 0
    seen = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert seen == [[name, f"step={step}"] for step in (1, 2, 3) for name in ("first", "second")]
    assert main(["eval", f"--run={run}", "--watch"]) == 0
    assert capsys.readouterr().out == ""
    (run / "STATUS").write_text("running at step 3\n")
    assert main(["eval", f"--run={run}", "--watch", "--timeout_seconds=0"]) == 0
    assert "no news of" in capsys.readouterr().err
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = min((row["eval/loss@second"], row["step"]) for row in rows)[1]
    assert lingo.load(run, step="best").step == best
    assert main(["eval", f"--run={run}", "--step=best"]) == 0
    assert f"second  step={best} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--step=77"], 3, "no checkpoint of step 77; it has"),
        (["--step=best"], 2, "set evaluate.metric"),
        (["--step=last"], 2, "not a step: a number, or best"),
        (["--watch", "--step=2"], 2, "give one of them"),
        (["--newest"], 2, "are for --watch"),
        (["--timeout_seconds=5"], 2, "are for --watch"),
    ],
)
def test_evaluations_that_cannot_be_meant_are_refused(run, capsys, options, code, message):
    assert main(["eval", f"--run={run}", *options]) == code
    assert message in capsys.readouterr().err
