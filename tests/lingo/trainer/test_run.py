"""A run: started, stopped, resumed; in-process and small."""

import json
import os
import re
import signal

import numpy as np
import pytest

import lingo
from lingo.checkpoints import store
from lingo.checkpoints.manifest import MANIFEST, render, seal_file
from lingo.config.params import ParamError
from lingo.data.prefetch import Prefetch
from lingo.data.record_source import DataError
from lingo.inspection import memory
from lingo.layers.sequence.positions import LearnedPositions
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.runtimes.local import LocalProgram
from lingo.storage.files import StorageError
from lingo.trainer import loop
from lingo.trainer import run as trainer
from lingo.trainer.directory.run_directory import CONFIG, RunDirectory
from lingo.trainer.loop import Outcome
from lingo.trainer.progress import Progress
from lingo.trainer.request import Request
from lingo.trainer.run import mark_ended, mark_running, mark_stopped_on_signal, train

pytestmark = pytest.mark.usefixtures("once_compiled")


def assert_same(mine, yours):
    assert mine.keys() == yours.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, yours[name], err_msg=name)


def test_a_run_leaves_everything_that_is_needed_to_read_it(small, run, rows, losses, directory):
    outcome = run(small(), directory)
    assert outcome.step == 6
    assert outcome.signal is None
    names = {p.name.partition(".tfevents")[0] for p in directory.iterdir()}
    assert names == {
        ".lock", "STATUS", "checkpoints", "config.json", "config.txt", "environment.json",
        "eval_same", "events.out", "flags.txt", "metrics.jsonl", "train", "weights.txt",
    }  # fmt: skip
    assert (directory / "STATUS").read_text() == "done at step 6\n"
    assert sorted(losses(directory)) == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in rows(directory) if "eval/loss" in r] == [4, 6]
    assert store.steps(directory / "checkpoints") == [2, 4, 6]


def test_a_run_that_is_done_has_the_reports_that_it_ended_with(small, run, directory):
    params = small(max_steps=2)
    params.eval_inputs = {name: params.eval_inputs["same"].copy() for name in ("same", "other")}
    first, again = run(params, directory), run(params, directory)
    assert again == first
    assert again.scalars["loss/total"] > 0
    assert again.evaluations.keys() == {"same", "other"}


def test_a_report_that_was_not_finite_is_nan_again(small, run, directory):
    params = small(max_steps=2)
    first = run(params, directory)
    text = (directory / "metrics.jsonl").read_text()
    loss = f'"loss/total": {first.scalars["loss/total"]}'
    assert text.count(loss) == 1
    (directory / "metrics.jsonl").write_text(text.replace(loss, '"loss/total": null'))
    again = run(params, directory)
    assert np.isnan(again.scalars["loss/total"])
    assert again.evaluations == first.evaluations


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_is_the_same_bit_for_bit(small, run, losses, weights, tmp_path, stop):
    run(small(), tmp_path / "whole")
    run(small(max_steps=stop), tmp_path / "parts")
    assert run(small(), tmp_path / "parts").step == 6
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert_same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_a_resumed_run_in_float16_goes_on_with_its_loss_scale(small, run, weights, tmp_path):
    def in_float16(**fields):
        params = small(**fields)
        params.task.dtype = "float16"
        return params

    run(in_float16(), tmp_path / "whole")
    run(in_float16(max_steps=3), tmp_path / "parts")
    run(in_float16(), tmp_path / "parts")
    whole = weights(tmp_path / "whole")
    assert whole["state/loss_scale/finite_steps"] == 6
    assert_same(weights(tmp_path / "parts"), whole)


def test_a_step_that_does_not_fit_into_memory_is_refused_before_it_begins(
    small, run, directory, monkeypatch
):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10_000)
    monkeypatch.setattr(trainer, "check_memory", lambda experiment: None)  # of the state alone
    with pytest.raises(ParamError, match=r"a step holds about .*this machine has 9\.77 KiB"):
        run(small(), directory)
    assert not directory.exists()


def test_after_a_process_that_ended_inside_a_step_the_next_says_how_large_it_is(
    small, run, directory, capsys
):
    run(small(max_steps=3), directory)
    assert "ended inside a step" not in capsys.readouterr().out
    (directory / "STATUS").write_text("running at step 3\n")
    run(small(), directory)
    assert re.search(
        r"the last process was killed, or ended inside a step: a step holds about [\d.]+ KiB:"
        r" [\d.]+ KiB of weights .* of activations for the gradient; this machine has",
        capsys.readouterr().out,
    )


def test_a_checkpoint_that_verifies_and_holds_garbage_is_passed_over(
    small, run, weights, directory, capsys
):
    run(small(), directory)
    whole = weights(directory)
    path = store.step_path(directory / "checkpoints", 6)
    for file in path.glob("tensors*"):
        file.write_bytes(b"garbage")
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = {name: seal_file(path / name) for name in manifest["files"]}
    (path / MANIFEST).write_bytes(render(manifest))
    assert run(small(max_steps=7), directory).step == 7
    assert f"{path} is damaged: tensors: no tensors can be read" in capsys.readouterr().out
    assert store.quarantined_names(directory / "checkpoints") == [f"{path.name}.corrupt-1"]
    again = store.find(directory / "checkpoints", 6, of=directory)
    assert_same(again.read(again.tensors), whole)


def test_rows_past_the_checkpoint_are_cut_off_on_resuming(small, run, rows, losses, directory):
    run(small(), directory)
    whole = losses(directory)
    store.delete(store.step_path(directory / "checkpoints", 6))
    run(small(), directory)
    steps = [row["step"] for row in rows(directory) if "loss/total" in row]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert losses(directory) == whole


def test_a_resumed_run_says_what_its_audit_log_lacks(small, run, directory, capsys):
    run(small(max_steps=3), directory, audit=True)
    log = directory / "audit.jsonl"
    log.unlink()
    run(small(), directory)  # without `audit`: the checkpoint knows
    assert (
        f"{log} lacks the rows of steps 1 to 3, as a line in it says\n" in capsys.readouterr().out
    )
    mark, *rows = map(json.loads, log.read_text().splitlines())
    assert mark == {"step": 3, "missing": [[1, 3]]}
    assert [row["step"] for row in rows] == [4, 5, 6]


def test_a_signal_finishes_the_step_in_hand_saves_and_ends(small, run, directory, monkeypatch):
    train_to = loop.Loop._advance

    def terminated(self, item):
        if item.steps.start == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        train_to(self, item)

    monkeypatch.setattr(loop.Loop, "_advance", terminated)
    outcome = run(small(), directory)
    assert (outcome.step, outcome.signal) == (3, signal.SIGTERM)
    assert (directory / "STATUS").read_text() == "stopped at step 3\n"
    assert store.steps(directory / "checkpoints") == [2, 3]


def test_a_signal_does_not_wait_for_input(small, run, directory, monkeypatch):
    made = Prefetch.__next__

    def terminated(self):
        item = made(self)
        if item.steps.start == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("still there")
        return item

    monkeypatch.setattr(Prefetch, "__next__", terminated)
    outcome = run(small(), directory)
    assert (outcome.step, outcome.signal) == (3, signal.SIGTERM)
    assert store.steps(directory / "checkpoints") == [2, 3]


@pytest.mark.parametrize("at", [4, 6])
def test_a_stopped_evaluation_is_made_up(small, run, rows, directory, tmp_path, monkeypatch, at):
    run(small(), tmp_path / "whole")
    train_to = loop.Loop._advance

    def terminated(self, item):
        train_to(self, item)
        if item.steps.stop == at:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_advance", terminated)
        assert run(small(), directory).signal == signal.SIGTERM
    assert (directory / "STATUS").read_text() == f"stopped at step {at}\n"
    assert run(small(), directory).step == 6
    assert (directory / "STATUS").read_text() == "done at step 6\n"
    for mine, whole in zip(rows(directory), rows(tmp_path / "whole"), strict=True):
        for key in ("step", "loss/total", "eval/loss"):
            assert mine.get(key) == whole.get(key)


def test_a_signal_in_the_last_save_changes_nothing(small, run, directory, inject):
    inject("commit:term@6")
    outcome = run(small().set(eval_inputs={}), directory)
    assert (outcome.step, outcome.state, outcome.signal) == (6, "done", None)
    assert (directory / "STATUS").read_text() == "done at step 6\n"


def test_an_error_loses_no_step_that_was_done(small, run, directory, monkeypatch):
    made = Prefetch.__next__

    def damaged(self):
        item = made(self)
        if item.steps.start == 3:
            raise DataError("a file is damaged")
        return item

    monkeypatch.setattr(Prefetch, "__next__", damaged)
    with pytest.raises(DataError):
        run(small(), directory)
    assert store.steps(directory / "checkpoints") == [2, 3]
    assert (directory / "STATUS").read_text() == "failed at step 3\n"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"accumulation_steps": 3}, "batch_size=4 does not split .* accumulation_steps=3"),
        ({"train_input.repeat": False}, "needs data until max_steps"),
        ({"eval_inputs.same.repeat": True}, "an evaluation has to end"),
        ({"task.vocab_size": 100}, "vocab_size=100, but the input has 259"),
        ({"task.model.positions": LearnedPositions.params(max_length=4)}, "8 positions, but max_"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(small, run, directory, mistake, said):
    params = small()
    for where, value in mistake.items():
        at = params
        *parents, last = where.split(".")
        for name in parents:
            at = at[name] if isinstance(at, dict) else getattr(at, name)
        setattr(at, last, value)
    with pytest.raises(ValueError, match=said):
        run(params, directory)
    assert not directory.exists()


def test_a_run_that_is_done_is_left_alone(small, run, directory):
    run(small(), directory)
    before = (directory / "metrics.jsonl").read_bytes()
    assert run(small(), directory).step == 6
    assert (directory / "metrics.jsonl").read_bytes() == before


def test_a_run_that_was_killed_past_a_lowered_last_step_is_done(small, run, directory):
    run(small(max_steps=4), directory)
    (directory / "STATUS").write_text("running at step 4\n")
    assert run(small(max_steps=3), directory).state == "done"
    assert (directory / "STATUS").read_text() == "done at step 4\n"


def test_an_evaluation_that_is_missing_past_a_lowered_last_step_is_made_up(small, run, directory):
    run(small(max_steps=3).set(eval_inputs={}), directory)
    metrics = directory / "metrics.jsonl"
    lowered = small(max_steps=2)
    assert run(lowered, directory, allow_change=True).state == "done"
    assert "eval/loss" in json.loads(metrics.read_text().splitlines()[-1])


def test_a_directory_without_a_name_is_refused(small, directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ParamError, match="needs a directory"):
        lingo.train(small(), "")
    assert sorted(tmp_path.iterdir()) == before


def test_how_the_program_is_made_changes_no_loss(small, run, losses, tmp_path):
    run(small(), tmp_path / "plain")
    plain = losses(tmp_path / "plain")
    for i, change in enumerate(
        (
            lambda cfg: (
                cfg.all(Stack).swap(Repeat) and cfg.all(TransformerLayer).wrap(Remat, "layer")
            ),
            lambda cfg: cfg.set(accumulation_steps=4),
            lambda cfg: cfg.set(steps_per_loop=10),
        )
    ):
        changed = small()
        change(changed)
        run(changed, tmp_path / str(i))
        for step, loss in losses(tmp_path / str(i)).items():
            assert loss == pytest.approx(plain[step], rel=1e-5), (i, step)
        read_by_other = small(max_steps=8)
        assert run(read_by_other, tmp_path / str(i), allow_change=True).step == 8


# ---- STATUS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "stopped"), (ValueError, "failed")]
)
def test_an_error_ends_a_run_and_a_signal_stops_it(error, state, tmp_path):
    run = RunDirectory(tmp_path)
    with mark_running(run, 3):
        assert run.status() == ("running", 3)
    with pytest.raises(error), mark_running(run, 3):
        raise error
    assert run.status() == (state, 3)


@pytest.mark.parametrize(
    ("before", "after"),
    [("running", "stopped"), ("failed", "stopped"), ("done", "done"), ("done (early)",) * 2],
)
def test_a_signal_before_it_goes_on_stops_a_run_that_is_not_done(before, after, tmp_path):
    with pytest.raises(KeyboardInterrupt), mark_stopped_on_signal(RunDirectory(tmp_path)):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir()), "no run was begun"
    run = RunDirectory(tmp_path)
    run.write({CONFIG: "{}"})
    run.set_status(before, 5)
    with pytest.raises(KeyboardInterrupt), mark_stopped_on_signal(run):
        raise KeyboardInterrupt
    assert run.status() == (after, 5)


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        (0, "done at step 7\n"),
        (2, "done at step 7; the last 2 changed nothing: they were not finite\n"),
    ],
)
def test_the_end_is_written_and_said(skipped, said, tmp_path, capsys):
    run = RunDirectory(tmp_path)
    with Progress() as progress:
        mark_ended(run, Outcome(7, {}, {}, num_skipped=skipped, state="done"), progress)
    assert run.status() == ("done", 7)
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("other", ["a directory", "a link"])
def test_what_takes_the_place_of_the_directory_gets_nothing(
    small, run, directory, monkeypatch, other, tmp_path
):
    train = LocalProgram.train

    def replace_and_train(program, batches):
        report = train(program, batches)
        if directory.exists() and not (tmp_path / "moved").exists():
            directory.rename(tmp_path / "moved")
            (there := tmp_path / "there").mkdir()
            directory.mkdir() if other == "a directory" else directory.symlink_to(there)
        return report

    monkeypatch.setattr(LocalProgram, "train", replace_and_train)
    with pytest.raises(StorageError, match="is no longer the directory"):
        run(small(max_steps=6), directory, audit=True)
    assert [*(tmp_path / "there").iterdir()] == [*directory.iterdir()] == []


@pytest.mark.parametrize(("steps", "refused"), [((3, 5), True), ((2, 5), False), ((0, 1), False)])
def test_a_profile_of_steps_that_are_never_done_is_refused_at_the_start(
    small, directory, steps, refused, monkeypatch
):
    monkeypatch.setattr("lingo.trainer.profile.Profile._start", lambda self: None)
    monkeypatch.setattr("lingo.trainer.profile.Profile._stop", lambda self: None)
    request = Request(small(max_steps=3), "{}", "", profile_steps=range(*steps))
    if refused:
        with pytest.raises(ParamError, match=r"profile_steps=3:5: the run does the steps from 0"):
            train(request, RunDirectory(directory))
        assert not directory.exists()
    else:
        assert train(request, RunDirectory(directory)).step == 3
