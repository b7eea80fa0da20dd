"""A sweep at work, with runs that take no time."""

import json
import os
import shutil
import signal
from unittest import mock

import pytest

from lingo.config.base.errors import LingoError
from lingo.config.params import ParamError
from lingo.processes import signals
from lingo.storage.files import DirectoryLocked
from lingo.study.plan import ChangedSweep
from lingo.study.run import run_sweep


@pytest.fixture
def sweep():
    """Runs a sweep; what it showed is in `lines`."""

    def sweep(request, launch, num_workers=1):
        sweep.lines.clear()
        return run_sweep(request, launch=launch, num_workers=num_workers, show=sweep.lines.append)

    sweep.lines = []
    return sweep


def numbers(outcome):
    return [result.trial.number for result in outcome.results]


def states(outcome):
    return {result.trial.number: result.state for result in outcome.results}


def test_every_trial_is_run_and_the_best_comes_first(request_for, training, sweep):
    launch = training([3.0, 1.0, 2.0])
    outcome = sweep(request_for("a=1,2,3"), launch)
    assert launch.started == [0, 1, 2]
    assert numbers(outcome) == [1, 2, 0]
    assert (outcome.results[0].value, outcome.results[0].step) == (1.0, 7)
    assert outcome.signal is None


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_as_many_trials_as_workers_run_at_a_time(request_for, training, sweep, num_workers):
    launch = training([1.0] * 4)
    sweep(request_for("a=1,2,3,4"), launch, num_workers)
    assert launch.most == min(num_workers, 4)
    assert set(launch.slots) == set(range(min(num_workers, 4)))


def test_a_trial_that_fails_stops_no_other(request_for, training, sweep):
    outcome = sweep(request_for("a=1,2,3"), training([1.0, 2.0, 3.0], codes={0: 8}))
    assert states(outcome) == {0: "failed", 1: "done", 2: "done"}
    assert numbers(outcome) == [1, 2, 0]
    assert outcome.results[-1].exit_code == 8
    assert any("failed with exit code 8: ended with 8" in line for line in sweep.lines)


def test_a_sweep_that_is_done_runs_nothing_and_shows_its_results(request_for, training, sweep):
    sweep(request_for("a=1,2"), training([2.0, 1.0]))
    launch = training([])
    outcome = sweep(request_for("a=1,2"), launch)
    assert launch.started == []
    assert numbers(outcome) == [1, 0]
    assert any("done before, loss/total 1 at step 7" in line for line in sweep.lines)


def test_a_sweep_that_was_interrupted_keeps_the_trials_that_are_done(request_for, training, sweep):
    sweep(request_for("a=1,2,3"), training([1.0, 2.0, 3.0], codes={1: 9}))
    launch = training([9.0, 0.5, 9.0])
    outcome = sweep(request_for("a=1,2,3"), launch)
    assert launch.started == [1]
    assert [result.value for result in outcome.results] == [0.5, 1.0, 3.0]


def test_another_sweep_in_the_directory_is_refused(request_for, training, sweep):
    sweep(request_for("a=1,2"), training([1.0, 2.0]))
    with pytest.raises(ChangedSweep, match="sweep: a=1,2 -> a=1,2,3"):
        sweep(request_for("a=1,2,3"), training([]))
    with pytest.raises(ChangedSweep, match=r"c: \(absent\) -> 1"):
        sweep(request_for("a=1,2", sets=["c=1"]), training([]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_nothing_more_starts(request_for, training, sweep, number):
    launch = training([1.0] * 4)
    launch.on_start = lambda trial: trial.number == 2 and signal.raise_signal(number)
    outcome = sweep(request_for("a=1,2,3,4"), launch, num_workers=2)
    assert outcome.signal == number
    assert launch.signals == {n: [number] for n in launch.signals}
    assert states(outcome)[2] == "stopped"
    assert launch.started == [0, 1, 2]
    again = training([1.0] * 4)
    assert sweep(request_for("a=1,2,3,4"), again).signal is None
    assert set(again.started) == {n for n, s in states(outcome).items() if s == "stopped"} | {3}


def test_a_second_interrupt_ends_the_sweep_at_once(request_for, training, sweep, monkeypatch):
    monkeypatch.setattr(signals, "_AGAIN_SECONDS", 0.0)
    launch = training([1.0, 1.0])
    send = signal.raise_signal
    launch.on_start = lambda trial: trial.number == 1 and [send(signal.SIGINT) for _ in "ab"]
    with pytest.raises(KeyboardInterrupt):
        sweep(request_for("a=1,2"), launch, num_workers=2)
    assert launch.signals == {0: [signal.SIGINT]}


def test_an_error_in_the_sweep_stops_its_trials(request_for, training, sweep):
    launch = training([1.0, 1.0])
    launch.on_start = mock.Mock(side_effect=[None, LingoError("no space left")])
    with pytest.raises(LingoError, match="no space left"):
        sweep(request_for("a=1,2"), launch, num_workers=2)
    assert launch.signals == {0: [signal.SIGINT]}


def test_settings_and_results_are_files(request_for, training, sweep, tmp_path):
    sweep(request_for("a=1,2", sets=["c=3"]), training([2.0, None]))
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
    content = json.loads((tmp_path / "sweep/results.json").read_text())
    assert content["best"] == "000-a-1"
    assert [trial["value"] for trial in content["trials"]] == [2.0, None]


def test_a_line_is_shown_for_each_event(request_for, training, sweep):
    request = request_for("a=1,2")
    sweep(request, training([2.0, 1.0], codes={1: 8}))
    path = request.logdir
    assert sweep.lines == [
        "2 trials, 1 at a time; the lowest loss/total is best",
        f"tensorboard --logdir={path}",
        f"[0/2] 000-a-1: started, {path}/000-a-1/log.txt",
        "[1/2] 000-a-1: done, loss/total 2 at step 7; best 000 2; ETA 0:00:00",
        f"[1/2] 001-a-2: started, {path}/001-a-2/log.txt",
        "[2/2] 001-a-2: failed with exit code 8: ended with 8; best 000 2",
    ]


def test_a_second_sweep_is_kept_out_of_the_directory(request_for, training, sweep):
    request, launch = request_for("a=1"), training([1.0])

    def sweep_again(trial):
        with pytest.raises(DirectoryLocked, match=f"process {os.getpid()}"):
            sweep(request, training([]))

    launch.on_start = sweep_again
    assert states(sweep(request, launch)) == {0: "done"}


# ---- Optuna ------------------------------------------------------------------------------------


@pytest.fixture
def proposing(request_for):
    """Makes requests for a sweep whose points Optuna proposes."""
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    return lambda num_trials: request_for("a=0.0..1", method="optuna", num_trials=num_trials)


def test_a_sweep_keeps_its_proposed_points(proposing, training, sweep):
    before = sweep(proposing(3), training([1.0, 2.0, 3.0], codes={1: 8}))
    again = training([9.0, 0.5, 9.0, 4.0])
    after = sweep(proposing(4), again)
    assert again.started == [1, 3]
    points = {result.trial.number: result.trial.point for result in after.results}
    assert all(points[r.trial.number] == r.trial.point for r in before.results)
    assert len({point["a"] for point in points.values()}) == 4
    assert numbers(after) == [1, 0, 2, 3]


def test_fewer_trials_than_were_proposed_leave_the_others_out(proposing, training, sweep):
    sweep(proposing(3), training([1.0, 2.0, 3.0]))
    assert numbers(sweep(proposing(2), training([]))) == [0, 1]


def test_a_trial_keeps_its_point_in_its_directory(proposing, training, sweep, tmp_path):
    before = sweep(proposing(3), training([1.0, 2.0, 3.0]))
    shutil.rmtree(before.results[1].trial.path)  # trial 1
    again = training([1.0, 0.5, 3.0])
    after = sweep(proposing(3), again)
    assert again.started == [1]
    assert {path.name for path in (tmp_path / "sweep").iterdir() if path.is_file()} == {
        "sweep.json",
        "results.json",
    }
    assert numbers(after) == [1, 0, 2]


@pytest.mark.parametrize("content", ["{", "3", '{"number": 0}', '{"number": 0, "values": {}}'])
def test_a_trial_file_that_no_sweep_wrote_is_named(proposing, training, sweep, content):
    outcome = sweep(proposing(1), training([1.0]))
    (outcome.results[0].trial.path / "trial.json").write_text(content)
    with pytest.raises(ParamError, match=r"trial\.json is not a file that a sweep wrote"):
        sweep(proposing(1), training([]))
