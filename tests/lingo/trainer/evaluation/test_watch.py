"""Evaluation beside the training: waiting by a clock that runs when told to; rows and events."""

import logging

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lingo.trainer.directory.run_directory import RunDirectory
from lingo.trainer.evaluation import watch


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


class Elsewhere:
    """What happens at each poll; stands for the process that trains."""

    def __init__(self, *events):
        self.events, self.slept = list(events), 0.0

    def __call__(self, seconds):
        self.slept += seconds
        if self.events:
            self.events.pop(0)()


def saved(run, *steps):
    for step in steps:
        (run.checkpoints / f"step_{step:08d}").mkdir(parents=True)


def test_every_checkpoint_is_found_once_until_the_run_is_over(run):
    saved(run, 1, 2)

    def last():
        saved(run, 5)
        run.set_status("done", 5)

    elsewhere = Elsewhere(lambda: saved(run, 3, 4), lambda: None, last)
    found = watch.new_checkpoints(run, done={1}, timeout_seconds=60, sleep=elsewhere)
    assert list(found) == [2, 3, 4, 5]
    assert elsewhere.slept == 3 * watch.POLL_SECONDS


def test_only_the_newest_of_those_that_wait(run):
    saved(run, 1, 2, 3)
    found = []
    for step in watch.new_checkpoints(run, newest=True, timeout_seconds=60, sleep=Elsewhere()):
        found.append(step)
        if step == 3:  # while it is being evaluated
            saved(run, 4, 5)
            run.set_status("failed", 5)
    assert found == [3, 5]


def test_what_a_rewind_does_again_is_found_again(run):
    saved(run, 2, 4, 6)

    def back():
        for step in (4, 6):
            (run.checkpoints / f"step_{step:08d}").rmdir()

    def on():
        saved(run, 4)
        run.set_status("done", 4)

    found = watch.new_checkpoints(run, timeout_seconds=60, sleep=Elsewhere(back, on))
    assert list(found) == [2, 4, 6, 4]


def test_silence_ends_the_watch_and_any_news_prolongs_it(run):
    run.set_status("running", 0)
    quiet = Elsewhere()
    assert list(watch.new_checkpoints(run, timeout_seconds=3, sleep=quiet)) == []
    assert quiet.slept == 3 * watch.POLL_SECONDS
    busy = Elsewhere(*[lambda: None] * 2, lambda: run.metrics.append({"step": 1}))
    assert list(watch.new_checkpoints(run, timeout_seconds=3, sleep=busy)) == []
    assert busy.slept == 6 * watch.POLL_SECONDS


def test_a_run_that_ended_early_or_failed_is_over_and_a_stopped_one_may_go_on(run):
    for state, polls in (("done (early)", 0), ("failed", 0), ("stopped", 2)):
        run.set_status(state, 7)
        sleep = Elsewhere()
        assert list(watch.new_checkpoints(run, timeout_seconds=2, sleep=sleep)) == []
        assert sleep.slept == polls * watch.POLL_SECONDS


def test_a_run_may_begin_later(run, tmp_path):
    sleep = Elsewhere(lambda: None, lambda: (tmp_path / "config.json").write_text("{}"))
    watch.wait_for_run(run, timeout_seconds=60, sleep=sleep)
    assert sleep.slept == 2 * watch.POLL_SECONDS


# ---- results


def test_rows_and_events_are_in_the_folder_of_each_input(run, tmp_path):
    watch.write_evaluations(run, 4, {"a": {"eval/loss": 2.0}, "b": {"eval/loss": 3.0}})
    watch.write_evaluations(run, 8, {"a": {"eval/loss": 1.0}})
    assert {p.name for p in tmp_path.iterdir()} == {"eval_a", "eval_b"}
    rows = RunDirectory(run.evaluation("a")).metrics.read()
    assert [(row["step"], row["eval/loss"]) for row in rows] == [(4, 2.0), (8, 1.0)]
    events = EventAccumulator(str(run.evaluation("a"))).Reload().Tensors("eval/loss")
    assert sorted(event.step for event in events) == [4, 8]
    assert watch.evaluated_steps(run, ["a", "b"]) == {4}  # those of all inputs
    assert watch.evaluated_steps(run, ["a", "c"]) == set()


def test_a_folder_that_is_a_link_gets_no_rows_and_no_events(tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/eval_a").symlink_to(tmp_path / "elsewhere")
    watch.write_evaluations(RunDirectory(tmp_path / "run"), 4, {"a": {"eval/loss": 2.0}})
    assert ["it is a link" in message for message in caplog.messages] == [True, True]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "eval_a").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        watch.write_evaluations(RunDirectory(tmp_path), 4, {"a": {"eval/loss": 2.0}})
    assert all("cannot write" in message for message in caplog.messages)
    assert caplog.messages
