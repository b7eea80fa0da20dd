"""A sweep at work, with runs that take no time."""

from __future__ import annotations

import json
import signal

import pytest

from lingo.config.errors import LingoError
from lingo.config.params import ParamError
from lingo.processes import signals
from lingo.study.directory import ChangedSweep
from lingo.study.run import Outcome, run


@pytest.fixture
def swept():
    """Runs a sweep; what it showed is in `lines`."""

    def swept(request, launch, num_workers=1) -> Outcome:
        swept.lines.clear()
        return run(request, launch=launch, num_workers=num_workers, show=swept.lines.append)

    swept.lines = []
    return swept


def numbers(outcome: Outcome) -> list[int]:
    return [result.trial.number for result in outcome.results]


def states(outcome: Outcome) -> dict[int, str]:
    return {result.trial.number: result.state for result in outcome.results}


def test_every_trial_is_run_and_the_best_comes_first(request_for, training, swept) -> None:
    launch = training([3.0, 1.0, 2.0])
    outcome = swept(request_for("a=1,2,3"), launch)
    assert launch.started == [0, 1, 2]
    assert numbers(outcome) == [1, 2, 0]
    assert (outcome.results[0].value, outcome.results[0].step) == (1.0, 7)
    assert outcome.signal is None


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_as_many_trials_as_workers_run_at_a_time(request_for, training, swept, num_workers) -> None:
    launch = training([1.0] * 4)
    swept(request_for("a=1,2,3,4"), launch, num_workers)
    assert launch.most == min(num_workers, 4)
    assert set(launch.slots) == set(range(min(num_workers, 4)))


def test_a_trial_that_fails_stops_no_other(request_for, training, swept) -> None:
    outcome = swept(request_for("a=1,2,3"), training([1.0, 2.0, 3.0], codes={0: 8}))
    assert states(outcome) == {0: "failed", 1: "done", 2: "done"}
    assert numbers(outcome) == [1, 2, 0]
    assert outcome.results[-1].exit_code == 8
    assert any("failed with exit code 8: ended with 8" in line for line in swept.lines)


def test_a_sweep_that_is_done_runs_nothing_and_shows_its_results(
    request_for, training, swept
) -> None:
    swept(request_for("a=1,2"), training([2.0, 1.0]))
    launch = training([])
    outcome = swept(request_for("a=1,2"), launch)
    assert launch.started == []
    assert numbers(outcome) == [1, 0]
    assert any("done before, loss/total 1 at step 7" in line for line in swept.lines)


def test_a_sweep_that_broke_off_keeps_what_is_done(request_for, training, swept) -> None:
    swept(request_for("a=1,2,3"), training([1.0, 2.0, 3.0], codes={1: 9}))
    launch = training([9.0, 0.5, 9.0])
    outcome = swept(request_for("a=1,2,3"), launch)
    assert launch.started == [1]
    assert [result.value for result in outcome.results] == [0.5, 1.0, 3.0]


def test_runs_that_others_made_count(request_for, training, finished, swept) -> None:
    request = request_for("a=1,2")
    for number, point in enumerate(({"a": "1"}, {"a": "2"})):
        trial = request.trial(number, point)
        trial.path.mkdir(parents=True)
        finished(trial, 1.0 - number)
    launch = training([])
    assert numbers(swept(request, launch)) == [1, 0]


def test_more_steps_take_every_trial_further(request_for, training, swept) -> None:
    swept(request_for("a=1,2", sets=["max_steps=7"]), training([1.0, 2.0]))
    launch = training([1.0, 2.0])
    swept(request_for("a=1,2", sets=["max_steps=9"]), launch)
    assert launch.started == [0, 1]


def test_more_random_trials_go_on_from_those_that_are_done(request_for, training, swept) -> None:
    swept(request_for("a=0.0..1", method="random", num_trials=2), training([1.0] * 2))
    launch = training([2.0] * 4)
    outcome = swept(request_for("a=0.0..1", method="random", num_trials=4), launch)
    assert launch.started == [2, 3]
    assert len(outcome.results) == 4


def test_another_sweep_in_the_directory_is_refused(request_for, training, swept) -> None:
    swept(request_for("a=1,2"), training([1.0, 2.0]))
    launch = training([])
    with pytest.raises(ChangedSweep, match="sweep: a=1,2 -> a=1,2,3"):
        swept(request_for("a=1,2,3"), launch)
    with pytest.raises(ChangedSweep, match=r"c: \(absent\) -> 1"):
        swept(request_for("a=1,2", sets=["c=1"]), launch)
    assert launch.started == []


def test_a_mistake_in_the_last_value_creates_nothing(
    request_for, training, swept, tmp_path
) -> None:
    with pytest.raises(ParamError, match="trial a=13: a is unlucky"):
        swept(request_for("a=1,2,13"), training([]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_once_and_starts_nothing_more(
    request_for, training, swept, number
) -> None:
    launch = training([1.0] * 4)
    launch.on_start = lambda trial: trial.number == 2 and signal.raise_signal(number)
    outcome = swept(request_for("a=1,2,3,4"), launch, num_workers=2)
    assert outcome.signal == number
    assert launch.signals == {n: [number] for n in launch.signals}
    assert states(outcome)[2] == "stopped"
    assert launch.started == [0, 1, 2]
    again = training([1.0] * 4)
    assert swept(request_for("a=1,2,3,4"), again).signal is None
    assert set(again.started) == {n for n, s in states(outcome).items() if s == "stopped"} | {3}


def test_a_second_interrupt_is_handed_on_and_ends_it_at_once(
    request_for, training, swept, monkeypatch
) -> None:
    monkeypatch.setattr(signals, "_AGAIN_SECONDS", 0.0)
    launch = training([1.0, 1.0])

    def interrupt_twice(trial) -> None:
        if trial.number == 1:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    launch.on_start = interrupt_twice
    with pytest.raises(KeyboardInterrupt):
        swept(request_for("a=1,2"), launch, num_workers=2)
    assert launch.signals == {0: [signal.SIGINT]}


def test_what_goes_wrong_in_the_sweep_stops_its_trials(request_for, training, swept) -> None:
    launch = training([1.0, 1.0])

    def fail(trial) -> None:
        if trial.number == 1:
            raise LingoError("no space left")

    launch.on_start = fail
    with pytest.raises(LingoError, match="no space left"):
        swept(request_for("a=1,2"), launch, num_workers=2)
    assert launch.signals == {0: [signal.SIGINT]}


def test_what_was_asked_and_what_came_of_it_are_files(
    request_for, training, swept, tmp_path
) -> None:
    swept(request_for("a=1,2", sets=["c=3"]), training([2.0, None]))
    assert json.loads((tmp_path / "sweep/sweep.json").read_text()) == {
        "format": 1,
        "train": ["--exp=toy", "--set=c=3"],
        "sweep": ["a=1,2"],
        "search": "grid",
        "num_trials": 0,
        "seed": 0,
        "metric": "loss/total",
        "goal": "min",
    }
    found = json.loads((tmp_path / "sweep/results.json").read_text())
    assert found["best"] == "000-a-1"
    assert [trial["value"] for trial in found["trials"]] == [2.0, None]
