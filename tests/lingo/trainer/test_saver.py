"""When a run is saved, and what it says of that."""

import faulthandler
import os

import pytest

from lingo.checkpoints import commit, store
from lingo.checkpoints.checkpoint import open_checkpoint
from lingo.checkpoints.run_counters import Health, RunCounters, read_counters
from lingo.runtimes.local import LocalProgram
from lingo.storage.files import StorageError
from lingo.trainer.directory.audit import Audit
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import SLOW_FACTOR, Watchdog
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.saver import Saver, retention, rewind_targets


def unwritable(monkeypatch, *steps):
    """Lets checkpoints of some steps fail after everything else is written."""
    written = commit.write_manifest

    def full(folder, *, step, **content):
        if step in steps:
            raise OSError(28, "No space left on device")
        written(folder, step=step, **content)

    monkeypatch.setattr(commit, "write_manifest", full)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_last_save_is_never_done(small, run, directory, monkeypatch, asynchronous):
    params = small().set(eval_inputs={})
    params.checkpoint.asynchronous = asynchronous
    with monkeypatch.context() as patch:
        unwritable(patch, 6)
        with pytest.raises(StorageError, match=r"step_00000006: No space left on device .*needed"):
            run(params, directory)
    assert (directory / "STATUS").read_text() == "failed at step 4\n"
    assert store.steps(directory / "checkpoints") == [2, 4]
    run(params, directory)
    assert (directory / "STATUS").read_text() == "done at step 6\n"


def test_a_failed_save_ends_the_run_with_what_was_done_since(small, run, directory, monkeypatch):
    params = small().set(eval_inputs={}, max_steps=1000)
    params.checkpoint.every_steps = 20
    unwritable(monkeypatch, 20)
    with pytest.raises(StorageError, match="step_00000020"):
        run(params, directory)
    step = store.steps(directory / "checkpoints")[-1]
    assert 20 < step < 1000
    assert (directory / "STATUS").read_text() == f"failed at step {step}\n"


def test_rows_of_the_audit_log_are_on_the_disk_before_the_checkpoint(
    small, run, directory, monkeypatch
):
    seen, sync, write_manifest = [], Audit.sync, commit.write_manifest

    def manifest(folder, *, step, **content):
        seen.append(step)
        write_manifest(folder, step=step, **content)

    monkeypatch.setattr(Audit, "sync", lambda self: (seen.append("synchronized"), sync(self)))
    monkeypatch.setattr(commit, "write_manifest", manifest)
    run(small().set(eval_inputs={}), directory, audit=True)
    assert seen == ["synchronized", 2, "synchronized", 4, "synchronized", 6]


def test_status_names_the_last_checkpoint_that_is_committed(small, run, directory, monkeypatch):
    said, advanced = [], LocalProgram.train

    def noted(self, batches):
        status = (directory / "STATUS").read_text()
        said.append((int(status.split()[-1]), store.steps(directory / "checkpoints")))
        return advanced(self, batches)

    monkeypatch.setattr(LocalProgram, "train", noted)
    run(small().set(eval_inputs={}), directory)
    assert all(step == 0 or step in committed for step, committed in said)


def test_multiples_that_stay_are_written_whatever_the_others_are(small, run, directory):
    params = small(max_steps=8).set(eval_inputs={}, steps_per_loop=10)
    params.checkpoint.set(every_steps=7, keep=1, keep_every_steps=3)
    run(params, directory)
    assert store.steps(directory / "checkpoints") == [3, 6, 7, 8]  # 7 to go back to


def test_a_save_and_what_follows_the_last_step_may_be_slow(small, directory, monkeypatch):
    file, seen, save = os.memfd_create("stacks"), [], Saver.save

    def noted(self):
        seen.append(os.pread(file, 100, 0))
        save(self)

    monkeypatch.setattr(Saver, "save", noted)
    request = Request(small().set(eval_inputs={}), "{}", "")
    train(request, RunDirectory(directory), watchdog=Watchdog(1000, file))
    faulthandler.cancel_dump_traceback_later()
    extended = b"%d\n" % (1000 * SLOW_FACTOR)
    assert seen == [extended] * 4  # after 2, 4, 6, and when all is done
    assert os.pread(file, 100, 0) == extended


# ---- which checkpoints are kept ------------------------------------------------------------------


@pytest.mark.parametrize("keep_best", [0, 1])
def test_a_run_leaves_what_its_last_checkpoint_says(experiment, run, text, tmp_path, keep_best):
    params = experiment(text, max_steps=7)
    params.checkpoint.set(every_steps=2, keep=1, keep_every_steps=None, keep_best=keep_best)
    params.evaluate.set(every_steps=3, metric="same/loss", goal="max")  # the first is best
    run(params, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    steps = store.steps(directory.checkpoints)
    last = open_checkpoint(store.step_path(directory.checkpoints, steps[-1]))
    built, at = params.build(), read_counters(last.step, last.metadata)
    assert sorted(retention(built, directory, at, steps).reasons(steps)) == steps
    assert steps == [3, 6, 7][1 - keep_best :]  # 7 was not due: 6 to go back to


@pytest.mark.parametrize(
    ("anomalous", "back"), [(0, [6]), (1, [6]), (2, [4]), (4, [2]), (6, [1]), (7, [])]
)
def test_a_run_in_trouble_goes_back_to_what_was_due_before_it(small, directory, anomalous, back):
    params = small(max_steps=20).set(eval_inputs={})
    params.checkpoint.set(every_steps=2, keep_every_steps=None)
    at = RunCounters(7, health=Health(num_skipped=anomalous, num_anomalous=anomalous))
    found = retention(params.build(), RunDirectory(directory), at, [1, 2, 3, 4, 5, 6, 7])
    assert found.rewind == back
    assert found.best == []


def test_any_sound_checkpoint_is_better_than_none(small):
    params = small()
    params.checkpoint.set(every_steps=4, keep_every_steps=None)
    steps, built = [3, 4, 6, 7, 8, 9], params.build()
    assert rewind_targets(built, steps, at_most=8) == [8, 4, 7, 6, 3]
    assert rewind_targets(built, steps, at_most=3) == [3]
    assert rewind_targets(built, steps, at_most=2) == []
