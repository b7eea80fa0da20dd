"""Trials as processes: their place, their output, their end."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from lingo.storage.files import StorageError
from lingo.study.launch import Local, share

TELL = """
import json, os, sys
print(json.dumps({
    "arguments": sys.argv[1:],
    "cores": sorted(os.sched_getaffinity(0)),
    "leads": os.getpgrp() == os.getpid(),
    "input": sys.stdin.read(),
}))
print("to stderr", file=sys.stderr)
sys.exit(5)
"""


@pytest.fixture
def trial(request_for, tmp_path):
    (tmp_path / "sweep").mkdir()
    return request_for("a=1").trial(0, {"a": "1"})


def launched(program: str, trial, *, slot: int = 0, num_workers: int = 1) -> subprocess.Popen:
    local = Local((sys.executable, "-c", program), num_workers=num_workers)
    process = local(trial, slot)
    assert isinstance(process, subprocess.Popen)
    return process


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "shares"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3, 4]]),
        (2, 2, [[0], [1]]),
        (2, 3, [[0, 1]] * 3),
    ],
)
def test_processors_are_divided_as_long_as_there_is_one_for_each(
    num_cores: int, num_workers: int, shares: list[list[int]]
) -> None:
    cores = range(num_cores)
    assert [list(share(cores, slot, num_workers)) for slot in range(num_workers)] == shares


def test_a_trial_is_given_its_command_line_its_cores_and_its_log(trial) -> None:
    with launched(TELL, trial) as process:
        assert process.wait() == 5
    first, second = (trial.path / "log.txt").read_text().splitlines()
    assert json.loads(first) == {
        "arguments": list(trial.arguments),
        "cores": sorted(os.sched_getaffinity(0)),
        "leads": True,
        "input": "",
    }
    assert second == "to stderr"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor cannot be divided")
def test_a_trial_beside_others_is_given_its_share(trial) -> None:
    with launched(TELL, trial, slot=1, num_workers=2) as process:
        process.wait()
    told = json.loads((trial.path / "log.txt").read_text().splitlines()[0])
    cores = sorted(os.sched_getaffinity(0))
    assert told["cores"] == cores[len(cores) // 2 :]


def test_a_trial_that_is_started_again_goes_on_in_its_log(trial) -> None:
    for _ in range(2):
        with launched("print('once')", trial) as process:
            process.wait()
    assert (trial.path / "log.txt").read_text() == "once\nonce\n"


def test_a_directory_that_cannot_be_made_is_named(trial) -> None:
    trial.path.parent.rmdir()
    trial.path.parent.write_text("a file")
    with pytest.raises(StorageError, match="000-a-1"):
        Local((sys.executable, "-c", ""), num_workers=1)(trial, 0)


WAIT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(143)))
with open("{fifo}", "w") as fifo:
    print("waiting", file=fifo, flush=True)
    signal.pause()
"""

SWEEP = """
import pathlib, sys
from lingo.study.launch import Local
from lingo.study.trial import Trial
trial = Trial(0, {{}}, pathlib.Path("{path}"), ())
Local((sys.executable, "-c", {program!r}), num_workers=1)(trial, 0).wait()
"""


def test_a_trial_is_told_to_stop_when_the_sweep_is_killed(trial, tmp_path: pathlib.Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = SWEEP.format(path=trial.path, program=WAIT.format(fifo=fifo))
    with subprocess.Popen([sys.executable, "-c", program]) as sweep, open(fifo) as said:
        assert said.readline() == "waiting\n"
        sweep.send_signal(signal.SIGKILL)
        assert said.read() == ""  # the trial has ended, and its end of the pipe is closed
    assert (trial.path / "log.txt").read_text() == "saved\n"
