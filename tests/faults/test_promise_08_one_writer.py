"""Promise 8: one process writes into a directory; others are told who, and readers need no lock."""

import os
import signal
import socket

import pytest

FORKING = '''
import os
import subprocess
import time


class Forking(TextInput):
    """Leaves two children behind: one forked, one of another program."""

    def batch(self, step, *, rows=slice(None)):
        if step == 4:
            subprocess.Popen(["sleep", "600"])
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        return super().batch(step, rows=rows)


@experiment
def forking():
    """As small, and forks."""
    cfg = small()
    data = cfg.train_input
    cfg.train_input = Forking.params(batch_size=4, length=16, source=data.source)
    return cfg
'''


def test_a_second_writer_is_told_who_the_first_is_and_takes_over_when_it_is_killed(runs, reference):
    first = runs.start(*runs.training("run"), inject="step:sleep=600@5")
    runs.reach_sleep(first)
    second = runs.train("run")
    assert second.returncode == 6
    holder = f"run is in use: process {first.pid} on {socket.gethostname()}, since 20"
    assert holder in second.stderr
    assert len(second.stderr.splitlines()) == 1
    first.kill()
    runs.finish(first)
    runs.assert_resumes(reference)


@pytest.mark.faults
def test_readers_need_no_lock(runs):
    first = runs.start(*runs.training("run"), inject="step:sleep=600@5")
    runs.reach_sleep(first)
    trust = f"--trust={runs.folder / 'small.py'}"
    before = sorted(p.name for p in (runs.folder / "run").iterdir())
    for verb, *flags in (["show"], ["decode", "--prompt=a", "--max_tokens=2"], ["eval"]):
        done = runs.lingo(verb, f"--run={runs.folder / 'run'}", trust, *flags)
        assert done.returncode == 0, done.stderr
    assert set(before) | {"eval_same"} == {p.name for p in (runs.folder / "run").iterdir()}
    first.kill()
    runs.finish(first)


@pytest.mark.faults
def test_children_that_outlive_a_killed_writer_do_not_keep_its_lock(runs):
    with open(runs.folder / "small.py", "a") as file:
        file.write(FORKING)
    runs.experiment = f"{runs.folder}/small.py:forking"
    forking = runs.training("run")
    # In a session of its own, so that what it leaves behind can be found.
    first = runs.start(*forking, inject="step:sleep=600@7", prefix=("setsid", "--wait"))
    pid = None
    try:
        runs.reach("run", 7, first)
        pid = int((runs.folder / "run" / ".lock").read_text().partition('"pid": ')[2].split(",")[0])
        os.kill(pid, signal.SIGKILL)
        second = runs.lingo(*forking)
        assert second.returncode == 0, second.stderr
        os.killpg(pid, 0)  # they are still there
    finally:
        if pid is not None:
            os.killpg(pid, signal.SIGKILL)
        runs.finish(first)
