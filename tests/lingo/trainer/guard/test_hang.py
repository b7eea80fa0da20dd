"""A hang ends, whatever holds the lock; signals and exit codes pass through the supervisor.

The watchdog counts from the first steps on, not in pauses, and not while something compiles.
"""

import fcntl
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

from lingo.trainer.guard import hang
from lingo.trainer.guard.hang import SLOW_FACTOR, Watchdog, watch_program


class Timer:
    """Stands in for `faulthandler`, and knows in how many seconds it would write stacks, if any."""

    seconds, starts = None, 0

    def dump_traceback_later(self, timeout, *, repeat, file):
        assert repeat
        assert os.pread(file, 100, 0) == b"%g\n" % (2 * timeout)
        self.seconds = timeout
        self.starts += 1

    def cancel_dump_traceback_later(self):
        self.seconds = None


@pytest.fixture
def timer(monkeypatch):
    timer = Timer()
    monkeypatch.setattr(hang, "faulthandler", timer)
    return timer


@pytest.fixture
def watchdog(timer):
    """Expects a sign of life every two seconds."""
    return Watchdog(2, os.memfd_create("stacks"))


class Recorder:
    """A program that notes what the watchdog expects while it is called."""

    def __init__(self, timer):
        self.timer = timer
        self.seen = []

    def _note(self, *given, **options):
        self.seen.append(self.timer.seconds)
        return options

    train = evaluate = decode = read_sums = _note


@pytest.fixture
def recorder(timer):
    return Recorder(timer)


@pytest.fixture
def program(recorder, watchdog):
    return watch_program(recorder, watchdog)


def batch(length):
    return {"tokens": np.zeros([2, length])}


def test_nothing_is_expected_before_it_is_armed(timer, watchdog):
    with watchdog:
        watchdog.beat()
        for quiet in (watchdog.pause, watchdog.extend):
            with quiet():
                pass
    with Watchdog() as nobody:
        nobody.arm()
    assert timer.starts == 0


def test_less_is_expected_after_it_is_left_whatever_comes(timer, watchdog):
    with watchdog:
        watchdog.arm()
        assert timer.seconds == 1
    watchdog.beat()
    assert timer.seconds == SLOW_FACTOR


def test_every_beat_starts_the_timer_and_empties_the_file(timer, watchdog):
    for starts in (1, 2, 3):
        watchdog.arm()
        assert (timer.starts, timer.seconds) == (starts, 1)
        os.write(watchdog._file, b"Timeout (0:00:01)!\n")


@pytest.mark.parametrize(("quiet", "seconds"), [("extend", SLOW_FACTOR), ("pause", None)])
def test_less_is_expected_of_what_is_slow_and_more_after_it(timer, watchdog, quiet, seconds):
    watchdog.arm()
    with pytest.raises(KeyError), getattr(watchdog, quiet)():  # noqa: PT012
        assert timer.seconds == seconds
        raise KeyError
    assert timer.seconds == 1


def test_the_first_steps_arm_it(timer, program):
    program.evaluate(batch(3))
    assert timer.seconds is None
    program.train(batch(3))
    assert timer.seconds == 1


def test_a_call_is_watched_unless_its_shapes_are_new(recorder, program):
    for length in (3, 3, 4, 4, 3):
        program.train(batch(length))
    assert recorder.seen == [None, 1, None, 1, 1]
    recorder.seen.clear()
    for weights in ("trained", "ema", "trained"):
        assert program.evaluate(batch(3), weights=weights) == {"weights": weights}
    assert recorder.seen == [None, None, 1]
    recorder.seen.clear()
    some, other = object(), object()
    for sampling in (some, other, some):
        assert program.decode(batch(3), sampling, seed=7) == {"seed": 7}
    assert recorder.seen == [None, None, 1]


def test_sums_of_batches_that_are_still_computed_may_take_longer(timer, recorder, program):
    program.train(batch(3))
    program.read_sums({})
    assert (recorder.seen[-1], timer.seconds) == (SLOW_FACTOR, 1)


def test_a_watched_call_beats_before_and_after(timer, recorder, program):
    program.train(batch(3))
    before = timer.starts
    program.evaluate(batch(3))  # compiles
    program.evaluate(batch(3))
    assert timer.starts == before + 3


# ---- the supervisor ------------------------------------------------------------------------------

ROOT = pathlib.Path(__file__).parents[4]
SCRIPT = """
import ctypes, os, signal, sys, time
from pathlib import Path
from lingo.trainer.guard.hang import Hang, supervise
from lingo.trainer.directory.run_directory import RunDirectory

def work(watchdog):
    print(os.getpid(), flush=True)
    with watchdog:
        {work}
    return 0

{first}
parent = os.getpid()
try:
    sys.exit(supervise(work, RunDirectory(sys.argv[1]), timeout_seconds=1))
except Hang as error:
    assert os.getpid() == parent
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def start(folder, work, first="", **options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(work=work, first=first), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        **options,
    )


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("pass", 0),
        ("return 7", 7),
        ("sys.exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("time.sleep(2)", 0),  # not armed
        ("watchdog.arm()\n        for _ in range(9): time.sleep(0.3), watchdog.beat()", 0),
        ("watchdog.arm()\n        with watchdog.pause(): time.sleep(2)", 0),
        ("watchdog.arm()\n        with watchdog.extend(): time.sleep(2)", 0),
        ("watchdog.arm()\n    time.sleep(2)", 0),  # left
    ],
)
def test_work_that_goes_on_ends_with_its_own_exit_code(tmp_path, work, code):
    process = start(tmp_path, work)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "stuck",
    [
        "time.sleep(600)",
        "ctypes.PyDLL(None).sleep(600)",  # C code that holds Python's lock
    ],
)
def test_a_hang_ends_with_the_stacks_of_all_threads(tmp_path, stuck):
    (tmp_path / "config.json").write_text("{}")
    work = "import threading; threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    process = start(tmp_path, f"{work}\n        watchdog.arm()\n        {stuck}")
    out, err = process.communicate(timeout=60)
    child = int(out)
    assert process.returncode == 9
    assert "a hang: nothing happened for 1 s" in err.splitlines()[-1]
    assert not pathlib.Path(f"/proc/{child}").exists()
    assert (tmp_path / "STATUS").read_text() == "failed at step 0\n"
    stacks = (tmp_path / "hang.txt").read_text()
    assert len(re.findall(r"hread 0x\w+ \(most recent call first\)", stacks)) == 2
    assert "in work" in stacks
    assert stacks.partition("\n")[2] in err


@pytest.mark.parametrize(
    "work",
    [
        "watchdog.arm()\n        with watchdog.extend(): time.sleep(600)",
        "watchdog.arm()\n    time.sleep(600)",
    ],
)
def test_what_is_slow_or_left_is_a_hang_later(tmp_path, work):
    first = "from lingo.trainer.guard import hang; hang.SLOW_FACTOR = 4"
    process = start(tmp_path, work, first)
    began = time.monotonic()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 9
    assert "a hang: nothing happened for 4 s" in err.splitlines()[-1]
    assert time.monotonic() - began > 4


def test_time_in_which_it_is_suspended_does_not_count(tmp_path):
    work = "watchdog.arm()\n        for _ in range(30): time.sleep(0.1), watchdog.beat()"
    with start(tmp_path, work) as process:
        child = int(process.stdout.readline())
        time.sleep(0.5)  # until it is armed
        for pid in (process.pid, child):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        for pid in (process.pid, child):
            os.kill(pid, signal.SIGCONT)
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(tmp_path, number):
    note = f"signal.signal({int(number)}, lambda number, frame: sys.exit(100 + number))"
    work = f"{note}\n        print('ready', flush=True)\n        time.sleep(60)"
    with start(tmp_path, work) as process:
        while process.stdout.readline() != "ready\n":
            pass
        process.send_signal(number)
        assert process.wait(timeout=60) == 100 + number


def test_a_signal_is_passed_on_that_comes_before_the_parent_listens(tmp_path):
    first = """
fork = os.fork
def slow():
    child = fork()
    time.sleep(1 if child else 0)
    return child
os.fork = slow
"""
    note = "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(100 + number))"
    work = f"{note}\n        os.kill(os.getppid(), signal.SIGTERM)\n        time.sleep(60)"
    with start(tmp_path, work, first) as process:
        assert process.wait(timeout=60) == 100 + signal.SIGTERM


def test_what_is_typed_at_a_terminal_arrives_once(tmp_path):
    ours, theirs = pty.openpty()
    note = "signal.signal(2, lambda *_: print('interrupted', flush=True))"
    wait = "end = time.monotonic() + 2\n        while time.monotonic() < end: time.sleep(0.001)"
    work = f"{note}\n        time.sleep(0.5); print('ready', flush=True)\n        {wait}"
    with start(
        tmp_path,
        work,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
    ) as process:
        while process.stdout.readline() != "ready\n":
            pass
        os.write(ours, b"\x03")
        assert process.stdout.read() == "interrupted\n"
        assert process.wait(timeout=60) == 0
    os.close(ours)
    os.close(theirs)


def test_suspended_both_stop_and_both_go_on(tmp_path):
    with start(tmp_path, "time.sleep(3)") as process:
        pids = [process.pid, int(process.stdout.readline())]
        time.sleep(0.5)  # until signals are passed on
        process.send_signal(signal.SIGTSTP)
        deadline = time.monotonic() + 60
        while [state(pid) for pid in pids] != ["T", "T"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=60) == 0


def state(pid):
    """Returns what Linux says that a process does: "T" is stopped."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_killed_it_takes_the_work_with_it(tmp_path):
    with start(tmp_path, "time.sleep(600)") as process:
        child = pathlib.Path(f"/proc/{int(process.stdout.readline())}/cmdline")
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while child.exists() and child.read_bytes():  # empty: dead, not yet waited for
            assert time.monotonic() < deadline
            time.sleep(0.01)
