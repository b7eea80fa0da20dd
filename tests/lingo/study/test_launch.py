"""Trials as processes: their processors, their output, their end."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lingo.storage.files import StorageError
from lingo.study.run import divide, divide_gpus, launch_locally, visible_gpus

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


def launch(program, trial, *, slot=0, num_workers=1):
    command = (sys.executable, "-c", program)
    return launch_locally(trial, slot, program=command, num_workers=num_workers)


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
def test_processors_are_divided_as_long_as_there_is_one_for_each(num_cores, num_workers, shares):
    cores = range(num_cores)
    assert [list(part) for part in divide(cores, num_workers)] == shares


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Returns a function that makes `nvidia-smi -L` print a text and exit with a code."""

    def gpus(text, code=0):
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\ntest "$1" = -L && cat <<EOF\n{text}\nEOF\nexit {code}\n')
        program.chmod(0o755)
        visible_gpus.cache_clear()

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield gpus
    visible_gpus.cache_clear()


LISTED = "GPU 0: NVIDIA H100 (UUID: GPU-aa-1)\nGPU 1: NVIDIA H100 (UUID: GPU-bb-2)"
PART = "\n  MIG 1g.10gb     Device  0: (UUID: MIG-cc/3/0)"


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        (LISTED, 0, ("GPU-aa-1", "GPU-bb-2")),
        (LISTED + PART, 0, ("MIG-cc/3/0",)),
        ("NVIDIA-SMI has failed (UUID: GPU-aa-1)", 9, ()),
        ("No devices were found", 0, ()),
    ],
)
def test_gpus_are_those_that_nvidia_smi_lists(gpus, text, code, names):
    gpus(text, code)
    assert visible_gpus() == names


@pytest.mark.parametrize(
    ("given", "names"),
    [("2,0", ("2", "0")), ("GPU-x, 1", ("GPU-x", "1")), ("", ()), ("0,-1,2", ("0",))],
)
def test_gpus_that_the_user_allows_come_first(gpus, monkeypatch, given, names):
    gpus(LISTED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == names


@pytest.mark.parametrize(
    ("num_workers", "shares"),
    [(1, ["ab"]), (2, ["a", "b"]), (3, ["a", "b", "a"])],
)
def test_each_trial_has_gpus_of_its_own_as_long_as_there_are_enough(num_workers, shares):
    assert ["".join(part) for part in divide_gpus(["a", "b"], num_workers)] == shares


def test_a_trial_sees_its_gpus_alone(gpus, request_for, tmp_path):
    gpus(LISTED)
    (tmp_path / "sweep").mkdir()
    request = request_for("a=1,2")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    for slot, name in enumerate(["GPU-aa-1", "GPU-bb-2"]):
        trial = request.trial(slot, {"a": str(slot + 1)})
        with launch(code, trial, slot=slot, num_workers=2) as process:
            assert process.wait() == 0
        assert (trial.path / "log.txt").read_text() == f"{name}\n"


def test_a_log_that_is_a_link_is_not_written_to(trial, tmp_path):
    trial.path.mkdir()
    (trial.path / "log.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"log\.txt: it is a link"):
        launch(TELL, trial)
    assert not (tmp_path / "elsewhere").exists()


def test_a_trial_gets_its_command_line_its_cores_and_its_log(trial):
    with launch(TELL, trial) as process:
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
def test_one_of_two_workers_gets_half_of_the_processors(trial):
    with launch(TELL, trial, slot=1, num_workers=2) as process:
        process.wait()
    printed = json.loads((trial.path / "log.txt").read_text().splitlines()[0])
    cores = sorted(os.sched_getaffinity(0))
    assert printed["cores"] == cores[len(cores) // 2 :]


def test_a_trial_that_is_started_again_appends_to_its_log(trial):
    for _ in range(2):
        with launch("print('once')", trial) as process:
            process.wait()
    assert (trial.path / "log.txt").read_text() == "once\nonce\n"


def test_a_directory_that_cannot_be_made_is_named(trial):
    trial.path.parent.rmdir()
    trial.path.parent.write_text("a file")
    with pytest.raises(StorageError, match="000-a-1"):
        launch("", trial)


WAIT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(143)))
with open("{fifo}", "w") as fifo:
    print("waiting", file=fifo, flush=True)
    signal.pause()
"""

SWEEP = """
import pathlib, sys
from lingo.study.run import launch_locally
from lingo.study.trial import Trial
trial = Trial(0, {{}}, pathlib.Path("{path}"), ())
program = (sys.executable, "-c", {program!r})
launch_locally(trial, 0, program=program, num_workers=1).wait()
"""


def test_a_trial_is_told_to_stop_when_the_sweep_is_killed(trial, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = SWEEP.format(path=trial.path, program=WAIT.format(fifo=fifo))
    with subprocess.Popen([sys.executable, "-c", program]) as sweep, open(fifo) as pipe:
        assert pipe.readline() == "waiting\n"
        sweep.send_signal(signal.SIGKILL)
        assert pipe.read() == ""  # the trial has ended, and its end of the pipe is closed
    assert (trial.path / "log.txt").read_text() == "saved\n"
