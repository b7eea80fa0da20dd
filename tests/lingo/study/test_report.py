"""What a sweep shows while it runs: a line an event."""

from __future__ import annotations

import json
import pathlib

import pytest

from lingo.study.metric import Metric
from lingo.study.report import Report
from lingo.study.trial import Result

METRIC = Metric("heldout/loss", "min")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def shown():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def trials(request_for):
    request = request_for("a.x=1,2,3,4")
    return [request.trial(number, {"a.x": str(number + 1)}) for number in range(4)]


@pytest.fixture
def told(shown, clock):
    return Report(METRIC, num_trials=4, num_workers=2, show=shown.append, clock=clock)


def test_it_begins_with_the_command_that_shows_it(told, shown) -> None:
    told.opened(pathlib.Path("my runs"))
    assert shown == [
        "4 trials, 2 at a time; the lowest heldout/loss is best",
        "tensorboard --logdir='my runs'",
    ]


def test_a_line_has_what_is_done_the_best_and_the_time_that_is_left(
    told, shown, clock, trials
) -> None:
    told.started(trials[0])
    told.started(trials[1])
    clock.now = 60.0
    told.ended(Result(trials[1], "done", 3.25, 300, 0))
    clock.now = 80.0
    told.ended(Result(trials[0], "done", 3.5, 300, 0))
    assert shown[0] == f"[0/4] 000-x-1: started, {trials[0].path / 'log.txt'}"
    assert shown[2] == (
        "[1/4] 001-x-2: done, heldout/loss 3.25 at step 300; best 001 3.25; ETA 0:01:30"
    )
    assert shown[3] == (
        "[2/4] 000-x-1: done, heldout/loss 3.5 at step 300; best 001 3.25; ETA 0:01:10"
    )


def test_the_time_of_trials_that_were_done_before_says_nothing(told, shown, trials) -> None:
    told.ended(Result(trials[0], "done", 3.5, 300))
    assert shown == ["[1/4] 000-x-1: done before, heldout/loss 3.5 at step 300; best 000 3.5"]


@pytest.mark.parametrize(
    ("result", "said", "line"),
    [
        (("failed", 1.0, 3, 8), "it diverged", "failed with exit code 8: it diverged"),
        (("failed", None, None, -9), "", "failed with exit code -9: it said nothing"),
        (("stopped", None, 3, 130), "", "stopped; the same command goes on with it"),
        (("done", None, 3, 0), "", "done, no finite heldout/loss"),
    ],
)
def test_what_has_no_result_says_why(told, shown, trials, result, said, line) -> None:
    told.ended(Result(trials[2], *result), said=said)
    assert shown == [f"[1/4] 002-x-3: {line}"]


def test_after_a_quiet_minute_it_says_what_is_running(told, shown, clock, trials) -> None:
    for trial in trials[:2]:
        trial.path.mkdir(parents=True)
    (trials[0].path / "metrics.jsonl").write_text(json.dumps({"step": 20}) + "\n")
    clock.now = 59.0
    told.waited(trials[:2])
    assert shown == []
    clock.now = 60.0
    told.waited(trials[:2])
    told.waited(trials[:2])
    assert shown == ["[0/4] running: 000-x-1 at step 20, 001-x-2 begins"]


def test_a_signal_is_shown(told, shown) -> None:
    told.stopping("SIGTERM")
    assert shown == ["[0/4] SIGTERM: the trials save and stop"]
