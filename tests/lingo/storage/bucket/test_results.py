"""Results of evaluations reach a run in a bucket while another process has its lease."""

import json
import logging

import pytest

from lingo.storage.bucket import commit, copy, mirror, results
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.mirror import Mirror
from tests.lingo.storage.bucket.folders import content, step, write

ROWS = "eval_same/metrics.jsonl"
EVENTS = "eval_same/events.out.tfevents.1.host.7.000.v2"


def row(number, time):
    return json.dumps({"step": number, "time": time, "eval/loss": 0.5}) + "\n"


@pytest.fixture
def address(memory):
    """The address of a run; promise 15 has the same on S3."""
    return memory.address


def send(address, number, time):
    results.send(address, {EVENTS: b"events", ROWS: row(number, time).encode()})


@pytest.fixture
def trainer(address, folder):
    """The process that trains, which has committed its run."""
    write(folder, {"config.json": "{}", "STATUS": "running", **step(2)})
    one = Mirror(folder, address)
    one.open()
    one.upload()
    one.wait()
    yield one
    one.close(is_sound=True)


def test_readers_have_results_although_another_process_has_the_lease(trainer, address, elsewhere):
    send(address, 2, 1.0)
    for _ in range(2):  # a second time they are there already
        assert mirror.pull(address, elsewhere)
        assert content(elsewhere)[ROWS] == row(2, 1.0)
        assert content(elsewhere)[EVENTS] == "events"


def test_a_copy_of_the_run_has_results(trainer, address, tmp_path):
    send(address, 2, 1.0)
    copy.fetch(address, tmp_path / "copied")
    assert content(tmp_path / "copied")[ROWS] == row(2, 1.0)


def test_the_trainer_commits_results_and_then_deletes_their_objects(
    trainer, address, folder, elsewhere
):
    bucket = Bucket(address)
    send(address, 2, 1.0)
    trainer.upload()  # takes them
    trainer.wait()
    assert content(folder)[ROWS] == row(2, 1.0)
    assert len(bucket.names(results.RESULTS)) == 2
    trainer.upload()  # commits them
    trainer.wait()
    assert bucket.names(results.RESULTS) == []
    assert {ROWS, EVENTS} <= {*commit.read_newest(bucket).table}
    assert mirror.pull(address, elsewhere)
    assert content(elsewhere)[ROWS] == row(2, 1.0)


def test_the_next_trainer_has_results_that_came_after_the_end(address, folder, elsewhere):
    write(folder, {"config.json": "{}"})
    first = Mirror(folder, address)
    first.open()
    first.close(is_sound=True)
    send(address, 2, 1.0)
    second = Mirror(elsewhere, address)
    second.open()
    assert content(elsewhere)[ROWS] == row(2, 1.0)
    second.close(is_sound=True)
    assert Bucket(address).names(results.RESULTS) == []
    assert ROWS in commit.read_newest(Bucket(address)).table


def test_results_that_were_cut_after_they_were_taken_do_not_come_again(trainer, address, folder):
    send(address, 2, 1.0)
    trainer.take_results()
    (folder / ROWS).write_text("")  # as by a run that goes back
    trainer.upload()
    trainer.wait()
    assert content(folder)[ROWS] == ""
    assert Bucket(address).names(results.RESULTS) == []


def test_of_results_of_one_step_the_latest_counts(memory, elsewhere):
    elsewhere.mkdir()
    for time in (2.0, 1.0, 3.0):
        send(memory.address, 2, time)
    send(memory.address, 1, 1.0)
    found = results.read(memory)
    assert results.add(found, elsewhere) == results.add(found, elsewhere) == found.keys()
    assert content(elsewhere)[ROWS] == row(2, 2.0) + row(2, 3.0) + row(1, 1.0)


@pytest.mark.parametrize(
    "path", ["config.json", "eval_a/../../b", "eval_a/b/c", "eval_a", "eval_a/.lock"]
)
def test_objects_that_are_no_results_are_left_where_they_are(memory, elsewhere, path, caplog):
    elsewhere.mkdir()
    name = f"{results.RESULTS}/1/{path}"
    memory.put(name, b"{}")
    with caplog.at_level(logging.WARNING):
        assert results.add({name: b"{}"}, elsewhere) == set()
    assert "is no result of an evaluation" in caplog.text
    assert list(elsewhere.iterdir()) == []


def test_a_failure_says_where_the_results_are(memory, monkeypatch):
    def refuse(self, name, data):
        raise BucketError(f"cannot write {name}")

    monkeypatch.setattr(Bucket, "put", refuse)
    with pytest.raises(BucketError, match="the results are only in the copy on this machine"):
        send(memory.address, 2, 1.0)
