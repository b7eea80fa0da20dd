"""A run that goes on from any of its checkpoints does what it did, in everything that it notes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import open_checkpoint
from lingo.checkpoints.run_counters import RunCounters
from lingo.contract import Guard
from lingo.storage.files import StorageError, append
from lingo.trainer.directory import audit
from lingo.trainer.directory.audit import Audit
from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.guard.guard import Incidents
from lingo.trainer.request import Request
from lingo.trainer.run import train
from lingo.trainer.step_recorder import StepRecorder

LAST = 10


def noted(directory):
    """Returns all that a run notes, but for times."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if "perf" not in k} for line in lines]
    for row in rows:
        del row["time"]
    return rows, (directory / "audit.jsonl").read_bytes()


def kept(directory):
    """Returns tensors and metadata of every checkpoint, by step."""
    found = {}
    for step in store.steps(directory / "checkpoints"):
        one = open_checkpoint(store.step_path(directory / "checkpoints", step))
        found[step] = one.read(one.tensors), one.metadata
    return found


@pytest.mark.parametrize("share", [slice(0, 2), slice(2, 4), slice(0, 0)])
def test_a_process_that_feeds_a_part_records_all_examples(small, tmp_path, share):
    one = small().set(guard=Guard.params(max_skipped_steps=1)).build()
    batch = one.train_input.batch(3)

    def noted_of(name, rows):
        dump, log = tmp_path / f"{name}.json", Audit(tmp_path / f"{name}.jsonl")
        incidents = Incidents(dump, report=print)
        recorder = StepRecorder(one, RunCounters(step=3), incidents=incidents, audit=log)
        report = {"first_non_finite": 0, "scalars": {"loss/total": np.nan}, "metric_states": {}}
        recorder.add({name: array[rows] for name, array in batch.items()}, report)
        recorder.write()
        recorder.failure(recorder.anomaly())
        return json.loads(log.path.read_text()), json.loads(dump.read_text())

    whole, whole_dump = noted_of("whole", slice(None))
    part, part_dump = noted_of("part", share)
    assert whole["examples"] == [12, 13, 14, 15]
    assert part == {key: value for key, value in whole.items() if key != "digest"}
    assert part_dump == whole_dump
    assert [one["examples"] for one in part_dump["steps"]] == [whole["examples"]]


def test_an_audit_log_that_cannot_be_written_ends_the_run(small, directory, monkeypatch):
    params = small()
    params.checkpoint.every_steps = 1

    def full(path, data):
        append(Path("/dev/full") if b'"step": 4' in data else path, data)

    monkeypatch.setattr(audit, "append", full)
    with pytest.raises(StorageError, match="cannot write") as raised:
        train(Request(params, "{}", "", audit=True), RunDirectory(directory))
    assert raised.value.exit_code == 10
    assert store.steps(directory / "checkpoints")[-1] == 3
    rows = (directory / "audit.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3]


@pytest.mark.usefixtures("once_compiled")
def test_from_every_step_all_that_follows_is_the_same(small, directory, tmp_path, inject):
    params = small(max_steps=LAST)
    params.train_input.length = 35  # eight rows an epoch: two steps
    params.eval_inputs["same"].length = 35
    params.evaluate.every_steps = 6
    params.checkpoint.set(every_steps=1, keep=LAST)
    params.summary.every_steps = 5  # metrics are added up over steps that lie between checkpoints
    params.guard = Guard.params(spike_steps=3, spike_deviations=1.0)
    inject("batch:nan@2 batch:garble@7")
    whole = tmp_path / "whole"

    def run(directory):
        train(Request(params, "{}", "", audit=True), RunDirectory(directory))
        return noted(directory), kept(directory)

    (rows, audit), checkpoints = run(whole)
    assert [row["step"] for row in rows] == [1, 3, 5, 6, 8, 10]
    assert [row["step"] for row in rows if row.get("learner/skipped")] == [3]
    assert [row["step"] for row in rows if row.get("learner/loss_spike")] == [8]
    origins = [o for line in audit.splitlines() for o in json.loads(line)["origins"]]
    assert len(set(origins)) == len(origins) == 4 * LAST
    passes = [sorted(o for o in origins if o.startswith(f"{epoch}:")) for epoch in range(5)]
    assert passes == [[f"{epoch}:{i}" for i in range(8)] for epoch in range(5)]

    for start in range(1, LAST):
        again = tmp_path / str(start)
        shutil.copytree(whole, again)
        for step in range(start + 1, LAST + 1):
            store.delete(store.step_path(again / "checkpoints", step))
        (their_rows, their_audit), their_checkpoints = run(again)
        assert their_rows == rows, f"from step {start}"
        assert their_audit == audit, f"from step {start}"
        for step, (tensors, metadata) in checkpoints.items():
            theirs, said = their_checkpoints[step]
            assert said == metadata
            for name, value in tensors.items():
                np.testing.assert_array_equal(theirs[name], value, err_msg=f"{start} {step} {name}")
