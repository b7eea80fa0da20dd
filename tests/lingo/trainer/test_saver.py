"""When a run is saved, and what it says of that; a run in trouble goes back to before it."""

import faulthandler
import json
import os

import pytest

from lingo.checkpoints import commit, store
from lingo.checkpoints.checkpoint import open_checkpoint
from lingo.checkpoints.errors import DamagedCheckpoint, NoUsableCheckpoint
from lingo.checkpoints.manifest import MANIFEST
from lingo.checkpoints.run_counters import Health, RunCounters, read_counters
from lingo.config.base.errors import NumericFailure
from lingo.contract import Guard
from lingo.runtimes.local import LocalProgram
from lingo.runtimes.program import LostState
from lingo.storage.files import StorageError
from lingo.trainer import first_state, saver
from lingo.trainer.directory.audit import Audit
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.hang import SLOW_FACTOR, Watchdog
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.saver import Rewinder, Saver, retention, rewind_targets

pytestmark = pytest.mark.usefixtures("once_compiled")


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


@pytest.fixture
def train_twelve(experiment, text, tmp_path):
    """Trains twelve steps in a directory, a checkpoint every three, and returns the audit log."""

    def run(name, *, guard, every_steps=3, keep=2, **fields):
        params = experiment(text, max_steps=12).set(eval_inputs={}, **fields)
        params.checkpoint.set(every_steps=every_steps, keep=keep)
        params.evaluate.every_steps = 24
        params.guard = Guard.params(max_skipped_steps=2, on_non_finite="rewind").set(**guard)
        try:
            train(Request(params, "{}", "", audit=True), RunDirectory(tmp_path / name))
        finally:
            audit = (tmp_path / name / "audit.jsonl").read_text()
        return audit

    return run


def batches(audit):
    rows = [json.loads(line) for line in audit.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["batch"] for row in rows]


def test_it_goes_back_to_the_checkpoint_before_and_skips_data(train_twelve, rows, inject, tmp_path):
    inject("batch:nan@7-8")
    audit = train_twelve("run", guard={})
    assert batches(audit) == [0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14]
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 13))
    assert {row["learner/skipped_total"] for row in rows(tmp_path / "run")} == {0.0}
    assert store.steps(tmp_path / "run/checkpoints") == [9, 12]
    found = store.latest(tmp_path / "run/checkpoints").metadata["data_position"]
    assert (found["offset"], found["rewinds"], found["examples"]) == (3, 1, 60)


def test_neither_longer_loops_nor_stops_on_the_way_change_where_it_goes(
    train_twelve, inject, tmp_path
):
    inject("batch:nan@7-8")
    audit = train_twelve("plain", guard={})
    assert train_twelve("together", guard={}, steps_per_loop=12) == audit
    train_twelve("parts", guard={}, max_steps=7)  # saved at 7, which is no checkpoint to go back to
    assert store.steps(tmp_path / "parts/checkpoints") == [6, 7]
    assert train_twelve("parts", guard={}) == audit
    train_twelve("late", guard={}, max_steps=8)  # the first bad step is done, the second comes
    assert train_twelve("late", guard={}) == audit
    assert train_twelve("later", guard={}, max_steps=10) == audit[: audit.index('{"step": 11')]
    assert train_twelve("later", guard={}) == audit


def test_a_process_that_dies_on_the_way_back_changes_nothing(
    train_twelve, inject, tmp_path, monkeypatch
):
    inject("batch:nan@7-8")
    audit = train_twelve("plain", guard={})

    def dies(self, *, after):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Saver, "delete_later", dies)
        with pytest.raises(KeyboardInterrupt):
            train_twelve("killed", guard={})
    assert train_twelve("killed", guard={}) == audit


def test_without_a_checkpoint_it_begins_anew(train_twelve, rows, inject, tmp_path):
    inject("batch:nan@1-2")
    assert batches(train_twelve("run", guard={})) == [*range(3, 15)]
    assert rows(tmp_path / "run")[0]["step"] == 1
    events = b"".join(file.read_bytes() for file in (tmp_path / "run/train").iterdir())
    assert b"model/stack/layers/0" in events, "the graph is still there"


def test_a_damaged_checkpoint_is_set_aside(train_twelve, inject, tmp_path, monkeypatch, capsys):
    inject("batch:nan@7-8")
    find = Rewinder._find

    def damaged(self, *known):
        (store.step_path(tmp_path / "run/checkpoints", 6) / MANIFEST).write_text("{}")
        return find(self, *known)

    monkeypatch.setattr(Rewinder, "_find", damaged)
    assert batches(train_twelve("run", guard={})) == [0, 1, 2, *range(9, 18)]
    names = store.quarantined_names(tmp_path / "run/checkpoints")
    assert names == ["step_00000006.corrupt-1"]
    assert f"renamed to {names[0]}" in capsys.readouterr().out


def test_it_never_throws_a_long_run_away(train_twelve, inject, tmp_path, monkeypatch):
    inject("batch:nan@7-8")

    def damaged(path):
        raise DamagedCheckpoint(path, MANIFEST, "it is gone")

    monkeypatch.setattr(saver, "open_sound", damaged)
    with pytest.raises(NumericFailure, match=r"no sound checkpoint from before.*6 is damaged"):
        train_twelve("run", guard={}, every_steps=6)
    assert store.steps(tmp_path / "run/checkpoints")[0] == 6


def test_it_deletes_nothing_before_it_has_read_its_target(
    train_twelve, inject, tmp_path, monkeypatch
):
    inject("batch:nan@7-8")

    def unreadable(learner, found):
        raise NoUsableCheckpoint(f"{found.path} cannot be read now")

    with monkeypatch.context() as patch:
        patch.setattr("lingo.trainer.first_state.restore_state", unreadable)
        with pytest.raises(NoUsableCheckpoint, match="cannot be read now"):
            train_twelve("run", guard={}, every_steps=6)
    assert store.steps(tmp_path / "run/checkpoints") == [6, 9]
    assert (tmp_path / "run/STATUS").read_text() == "failed at step 9\n"


def test_after_lost_devices_it_goes_back_to_the_latest_checkpoint_that_can_be_read(
    train_twelve, tmp_path, monkeypatch, capsys
):
    train_on, restore, lost = (
        LocalProgram.train,
        first_state.restore_state,
        [LostState("2 chips fail")],
    )

    def losing(self, batches):
        if lost and self.state().step == 7:
            raise lost.pop()
        return train_on(self, batches)

    def restored(learner, found):
        if found.step == 6:
            raise DamagedCheckpoint(found.path, "tensors", "no tensors can be read from its bytes")
        return restore(learner, found)

    monkeypatch.setattr(LocalProgram, "train", losing)
    monkeypatch.setattr(first_state, "restore_state", restored)
    assert batches(train_twelve("run", guard={})) == [*range(12)]
    assert store.quarantined_names(tmp_path / "run/checkpoints") == ["step_00000006.corrupt-1"]
    assert "step 8: 2 chips fail; back to step 3\n" in capsys.readouterr().out


def test_so_many_times_are_enough(train_twelve, inject, tmp_path):
    inject("batch:nan@4-99")
    with pytest.raises(NumericFailure, match=r"2 times in a row, but guard.max_rewinds=2"):
        train_twelve("run", guard={"max_rewinds": 2})
    for _ in range(2):
        with pytest.raises(NumericFailure, match=r"guard.max_rewinds=2.*numeric_failure.json"):
            train_twelve("run", guard={"max_rewinds": 2})
    inject("")
    audit = train_twelve("run", guard={"max_rewinds": 3})
    assert batches(audit) == [0, 1, 2, *range(10, 19)]


def test_a_spike_can_call_for_it(train_twelve, inject, tmp_path):
    inject("batch:garble@10")
    guard = {"spike_steps": 3, "spike_deviations": 1.0, "on_spike": "rewind"}
    assert batches(train_twelve("run", guard=guard)) == [*range(9), 11, 12, 13]


def test_a_spike_is_reported_where_it_is_and_changes_no_step(train_twelve, rows, inject, tmp_path):
    inject("batch:garble@10")
    guard = {"spike_steps": 3, "spike_deviations": 1.0}
    assert batches(train_twelve("run", guard=guard)) == [*range(12)]
    found = {row["step"]: row["learner/loss_spike"] for row in rows(tmp_path / "run")}
    assert [step for step, spike in found.items() if spike] == [11]
    assert rows(tmp_path / "run")[-1]["learner/loss_spike_total"] == 1


def test_a_spike_can_end_a_run_until_the_guard_is_changed(train_twelve, inject):
    inject("batch:garble@10")
    guard = {"spike_steps": 3, "spike_deviations": 1.0, "on_spike": "stop"}
    for _ in range(2):
        with pytest.raises(NumericFailure, match=r"step 11: the loss was a spike\. .*report"):
            train_twelve("run", guard=guard)
    assert batches(train_twelve("run", guard={**guard, "on_spike": "report"})) == [*range(12)]


@pytest.mark.parametrize(
    ("fault", "guard"),
    [
        ("batch:nan@4", {"on_non_finite": "stop"}),
        ("batch:nan@4-5", {"on_non_finite": "skip"}),
        ("batch:garble@10", {"spike_steps": 3, "spike_deviations": 1.0, "on_spike": "stop"}),
        ("batch:nan@4-5", {"max_rewinds": 0}),
    ],
    ids=str,
)
def test_what_ended_a_run_ends_it_again_after_later_steps(
    train_twelve, inject, tmp_path, fault, guard
):
    inject(fault)
    for _ in range(2):
        with pytest.raises(NumericFailure, match=r"step (5|6|11): "):
            train_twelve("run", guard=guard, steps_per_loop=12, every_steps=12)
    assert store.steps(tmp_path / "run/checkpoints") == [12]
    lenient = {"on_non_finite": "skip", "on_spike": "report", "max_skipped_steps": 10}
    assert len(batches(train_twelve("run", guard=lenient, every_steps=12))) == 12


def test_a_checkpoint_from_before_trouble_that_was_found_late_stays(train_twelve, inject, tmp_path):
    inject("batch:nan@4")
    with pytest.raises(NumericFailure, match="step 5: "):
        train_twelve(
            "run", guard={"on_non_finite": "stop"}, steps_per_loop=6, every_steps=4, keep=1
        )
    assert store.steps(tmp_path / "run/checkpoints") == [4, 8]
    audit = train_twelve("run", guard={"max_skipped_steps": 1}, every_steps=4, keep=1)
    assert batches(audit) == [0, 1, 2, 3, *range(5, 13)]


def test_a_rewind_may_be_slow(experiment, text, tmp_path, inject, monkeypatch):
    inject("batch:nan@3")
    file, seen, find = os.memfd_create("stacks"), [], Rewinder._find

    def slow(self, *known):
        seen.append(os.pread(file, 100, 0))
        return find(self, *known)

    monkeypatch.setattr(Rewinder, "_find", slow)
    params = experiment(text, max_steps=6).set(eval_inputs={})
    params.guard = Guard.params(max_skipped_steps=1, on_non_finite="rewind")
    watchdog = Watchdog(1000, file)
    train(Request(params, "{}", ""), RunDirectory(tmp_path / "run"), watchdog=watchdog)
    faulthandler.cancel_dump_traceback_later()
    assert seen == [b"%d\n" % (1000 * SLOW_FACTOR)]
