"""Promise 1: a save that is killed at any system call leaves the checkpoint before it, or itself.

One process has TensorFlow; for each point a child of it saves under strace, which kills it there.
"""

import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.store import Retention

CALLS = ("mkdir", "openat", "write", "rename", "fsync", "unlink", "unlinkat", "rmdir")
TIMEOUT = 120.0  # seconds, for anything that a child does
KEEP = 2

SAVER = """
import os, pathlib, sys
import numpy as np
from lingo.config.lazy import tf
from lingo.checkpoints import store
from lingo.checkpoints.store import Retention

tf.__version__  # imported before the first fork, used after it: its threads do not survive one
for directory in map(str.strip, sys.stdin):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.read(0, 1)
        tensors = [(f"weights/{i}", np.full((30, 40), 3 + i, np.float32)) for i in range(4)]
        given = {"step": 3, "tensors": tensors, "metadata": {}, "retention": Retention(2)}
        store.save(pathlib.Path(directory), **given)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def tensors(step):
    return [(f"weights/{i}", np.full((30, 40), step + i, np.float32)) for i in range(4)]


class Saver:
    """The process whose children save."""

    def __init__(self, process):
        self._process = process

    def save(self, directory, fault):
        """Saves step 3 in a directory with a fault that strace injects; returns the exit code."""
        self._say(f"{directory}\n")
        child = self._line()
        strace = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject={fault}", "-p", child],
            stderr=subprocess.PIPE,
        )
        try:
            self._attached(strace, int(child))
            self._say("x")
            return int(self._line())
        finally:
            strace.kill()
            strace.communicate()

    def _attached(self, strace, child):
        status = pathlib.Path(f"/proc/{child}/status")
        while "TracerPid:\t0\n" in status.read_text():
            if strace.poll() is not None:
                os.kill(child, signal.SIGKILL)
                pytest.skip(f"strace cannot attach: {strace.communicate()[1].decode().strip()}")

    def _say(self, text):
        self._process.stdin.write(text.encode())

    def _line(self):
        assert select.select([self._process.stdout], [], [], TIMEOUT)[0], "the saver hangs"
        return self._process.stdout.readline().decode().strip()


@pytest.fixture(scope="module")
def saver():
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", SAVER],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield Saver(process)
        process.kill()


@pytest.fixture
def fresh(tmp_path):
    """Makes directories with the checkpoints of two steps."""
    for step in (1, 2):
        store.save(
            tmp_path / "two",
            step=step,
            tensors=tensors(step),
            metadata={},
            retention=Retention(KEEP),
        )

    def fresh(name):
        return pathlib.Path(shutil.copytree(tmp_path / "two", tmp_path / name))

    return fresh


@pytest.mark.parametrize("call", CALLS)
def test_a_save_killed_at_any_system_call_loses_nothing(saver, fresh, call):
    killed, exit_code = 0, -signal.SIGKILL
    while exit_code == -signal.SIGKILL:
        directory = fresh(f"{call}-{killed + 1}")
        exit_code = saver.save(directory, f"{call}:signal=SIGKILL:when={killed + 1}")
        killed += exit_code == -signal.SIGKILL
        found = store.latest(directory)
        assert (found.step in (2, 3), found.later_errors) == (True, ())
        for name, value in tensors(found.step):
            np.testing.assert_array_equal(found.read([name])[name], value)
        store.clear_leftovers(directory)
        there = store.steps(directory)
        assert sorted(os.listdir(directory)) == [f"step_{step:08d}" for step in there]
        if found.step == 2:
            store.save(
                directory, step=3, tensors=tensors(3), metadata={}, retention=Retention(KEEP)
            )
        assert store.steps(directory)[-2:] == [2, 3]
    assert exit_code == 0
    assert killed >= 1, f"a save makes no {call}"
