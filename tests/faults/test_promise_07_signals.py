"""Promise 7: a signal at any time saves, or had nothing to save; the restart is exact."""

import pathlib
import random
import re
import signal
import time

import pytest

NOTHING = "nothing had to be saved"


def heeds(process, number):
    """Returns whether a process handles a signal."""
    try:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return False
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)


def assert_nothing_is_left(runs, done, number):
    assert done.returncode == 128 + number
    assert done.stderr == f"lingo: stopped by {signal.Signals(number).name}; {NOTHING}\n"
    assert not (runs.folder / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.0, 0.3, 1.5])
def test_during_start_up_and_imports_it_ends_at_once_and_leaves_nothing(runs, number, delay):
    process = runs.start(*runs.training("run"), own_imports=True)
    while not heeds(process, number) or not heeds(process, signal.SIGHUP):
        assert process.poll() is None
    time.sleep(delay)
    process.send_signal(number)
    assert_nothing_is_left(runs, runs.finish(process), number)


@pytest.mark.parametrize("instant", ["start:term@0", "compile:term@0"])
def test_before_a_run_has_begun_nothing_is_left(runs, instant):
    assert_nothing_is_left(runs, runs.train("run", inject=instant), signal.SIGTERM)


@pytest.mark.parametrize(
    ("instant", "step"),
    [
        ("step:term@4", 5),
        ("save:term@6", 6),
        ("evaluate:term@6", 6),
    ],
)
def test_the_step_in_hand_is_finished_and_saved(runs, reference, instant, step):
    assert_stops(runs, instant, [step, step + 1])
    runs.assert_resumes(reference)


@pytest.mark.parametrize("last", ["save:term@12", "evaluate:term@12"])
def test_a_run_that_is_stopped_again_and_again_resumes_exactly(runs, reference, last):
    assert_stops(runs, "report:term@1", [1, 2])
    assert_stops(runs, "commit:term@6", [6, 7])
    assert_stops(runs, "input:term@9", [9, 10])
    assert_stops(runs, last, [12])
    runs.assert_resumes(reference)


def assert_stops(runs, instant, steps):
    """Trains until a signal at an instant ends it, after one of some steps."""
    stopped = runs.train("run", inject=instant)
    states = [f"stopped at step {step}" for step in steps]
    if instant == "save:term@12":  # it is made beside the last evaluation, which may end before
        states.append("done at step 12")
    state = runs.status("run")
    assert state in states
    code = 0 if state.startswith("done") else 143
    assert (stopped.returncode, stopped.stderr) == (code, "")
    assert runs.leftovers("run") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_twice_at_once_is_once(runs, reference, number):
    process = runs.start(*runs.training("run"), inject="step:sleep=2@5")
    runs.reach_sleep(process)
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.02)
    done = runs.finish(process)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert runs.status("run") == "stopped at step 6"
    runs.assert_resumes(reference)


def test_a_second_interrupt_ends_a_step_that_takes_too_long(runs, reference):
    process = runs.start(*runs.training("run"), inject="step:sleep=600@5")
    runs.reach("run", 5, process)
    runs.reach_sleep(process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)  # sooner, it would be the same one twice
    process.send_signal(signal.SIGINT)
    done = runs.finish(process)
    assert (done.returncode, done.stderr) == (130, "lingo: interrupted\n")
    assert runs.status("run") == "stopped at step 3"
    runs.assert_resumes(reference)


def test_while_a_run_resumes_it_is_stopped_where_it_was(runs, reference):
    killed = runs.train("run", inject="step:kill@8")
    assert (killed.returncode, runs.status("run")) == (-signal.SIGKILL, "running at step 6")
    process = runs.start(*runs.training("run"), inject="compile:sleep=600@6")
    runs.reach_sleep(process)
    process.send_signal(signal.SIGTERM)
    done = runs.finish(process)
    assert done.returncode == 143
    assert NOTHING in done.stderr
    assert runs.status("run") == "stopped at step 6"
    runs.assert_resumes(reference)


def test_under_nohup_a_hangup_is_ignored(runs):
    process = runs.start(*runs.training("run"), inject="step:sleep=2@5", prefix=("nohup",))
    runs.reach("run", 5, process)
    process.send_signal(signal.SIGHUP)
    assert runs.finish(process).returncode == 0
    assert runs.status("run") == "done at step 12"


def test_at_random_moments(runs, reference):
    draw = random.Random(7)
    start = time.monotonic()
    assert runs.train("whole").returncode == 0
    seconds = time.monotonic() - start
    for _ in range(4):
        process = runs.start(*runs.training("run"))
        time.sleep(draw.uniform(0.05, seconds))
        process.send_signal(signal.SIGTERM)
        done = runs.finish(process)
        assert done.returncode in (143, -signal.SIGTERM, 0), done.stderr
        assert "Traceback" not in done.stderr
        begun = (runs.folder / "run" / "config.json").exists()
        assert begun == (runs.folder / "run").exists()
        if begun:
            assert re.fullmatch(r"(stopped|done) at step \d+", runs.status("run"))
            assert runs.leftovers("run") == []
    runs.assert_resumes(reference)


# ---- other verbs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["eval"], ["eval", "--watch"], ["decode", "--prompt=a"]],
)
def test_other_verbs_end_in_one_line(runs, reference, arguments):
    verb, *flags = arguments
    run = f"--run={reference.folder / 'whole'}"
    process = runs.start(verb, run, f"--trust={reference.folder / 'small.py'}", *flags)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    done = runs.finish(process)
    if done.returncode:  # it may be done already
        assert (done.returncode, done.stderr) == (130, f"lingo: stopped by SIGINT; {NOTHING}\n")


def test_an_export_that_is_stopped_leaves_nothing(runs, reference):
    place = runs.folder / "exports"
    place.mkdir()
    run = f"--run={reference.folder / 'whole'}"
    trust = f"--trust={reference.folder / 'small.py'}"
    process = runs.start("export", run, trust, "--format=savedmodel", f"--output={place / 'out'}")
    runs.reach_entry(place, process)
    process.send_signal(signal.SIGTERM)
    done = runs.finish(process)
    assert (done.returncode, done.stderr) == (143, f"lingo: stopped by SIGTERM; {NOTHING}\n")
    assert [*place.iterdir()] == []
