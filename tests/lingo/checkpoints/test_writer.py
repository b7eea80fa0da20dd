"""Checkpoints written while training goes on: none is lost, no error is, and one is at work."""

import logging
import subprocess
import sys
import threading

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.store import Retention
from lingo.checkpoints.writer import Writer
from lingo.storage.files import StorageError

SECONDS = 60.0  # by which a thread that is not stuck has done anything here
TENSORS = {"weights/w": np.ones(3, np.float32)}


def writer(directory, committed=id, *, asynchronous=True):
    return Writer(directory, asynchronous=asynchronous, on_commit=committed)


class Gate:
    """Tensors that cannot be had before it is opened."""

    def __init__(self):
        self.is_open, self.is_reached = threading.Event(), threading.Event()

    def tensors(self):
        self.is_reached.set()
        assert self.is_open.wait(SECONDS)
        yield from TENSORS.items()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    gate, committed = Gate(), []
    with writer(tmp_path, committed.append) as out:
        out.save(1, gate.tensors(), metadata={})
        assert gate.is_reached.wait(SECONDS)
        out.check()
        assert (store.steps(tmp_path), committed) == ([], [])
        gate.is_open.set()
        out.wait()
        assert (store.steps(tmp_path), committed) == ([1], [1])


def test_the_next_one_waits_for_the_one_before(tmp_path):
    gate, order = Gate(), []
    with writer(tmp_path, order.append) as out:
        out.save(1, gate.tensors(), metadata={})
        threading.Timer(0.05, gate.is_open.set).start()
        out.wait()
        order.append("waited")
        out.save(2, TENSORS.items(), metadata={})
    assert order == [1, "waited", 2]


def test_what_is_not_asynchronous_is_there_at_once(tmp_path):
    with writer(tmp_path, asynchronous=False) as out:
        out.save(1, TENSORS.items(), metadata={})
        assert store.steps(tmp_path) == [1]


def test_the_retention_says_which_stay(tmp_path):
    with writer(tmp_path) as out:
        for step in range(1, 6):
            out.save(step, TENSORS.items(), metadata={}, retention=Retention(1, every=3, best=[1]))
    assert store.steps(tmp_path) == [1, 3, 5]


def failing(out, tmp_path):
    """Lets the write in the thread fail, and returns when it has."""
    (tmp_path / "step_00000001").write_text("in the way")
    out.save(1, TENSORS.items(), metadata={})
    out._pending.exception(SECONDS)


@pytest.mark.parametrize("call", ["check", "wait", "save", "leave"])
def test_an_error_in_the_thread_is_raised_once_by_whatever_is_called_next(tmp_path, call):
    calls = {
        "check": lambda out: out.check(),
        "wait": lambda out: out.wait(),
        "save": lambda out: out.save(2, TENSORS.items(), metadata={}),
        "leave": lambda out: out.__exit__(None, None, None),
    }
    out, committed = writer(tmp_path, pytest.fail), []
    failing(out, tmp_path)
    with pytest.raises(StorageError, match="never written again"):
        calls[call](out)
    out.check()
    out.wait()
    assert committed == []


def test_an_error_beside_another_is_said_though_not_raised(tmp_path, caplog):
    out = writer(tmp_path)
    failing(out, tmp_path)
    with caplog.at_level(logging.ERROR):
        out.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "a checkpoint was not written: cannot write" in caplog.text


def test_the_interpreter_does_not_end_before_a_checkpoint_is_committed(tmp_path):
    code = f"""
import pathlib, sys, time
import numpy as np
from lingo.config.lazy import tf
from lingo.checkpoints.writer import Writer

tf.constant(0)

def slow():
    time.sleep(0.5)
    yield "weights/w", np.ones(3, np.float32)

writer = Writer(pathlib.Path({str(tmp_path)!r}), asynchronous=True, on_commit=print)
writer.save(7, slow(), metadata={{}})
sys.exit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=5 * SECONDS
    )
    assert (done.returncode, done.stdout) == (3, "7\n"), done.stderr
    assert store.steps(tmp_path) == [7]
