"""Promise 12: a hang ends with the stacks of all threads; what only takes long is no hang."""

import os
import pathlib
import signal

import pytest

from lingo.trainer.guard.hang import SLOW_FACTOR


def trainer(process):
    """Returns the process that trains: the child of the one that watches."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(children.read_text().split()[0])


def test_a_hang_in_c_code_that_holds_the_lock_of_python_ends_with_all_stacks(runs, reference):
    hung = runs.train("run", "--hang_timeout=8", inject="step:hang=600@7")
    assert hung.returncode == 9, hung.stderr
    assert hung.stderr.splitlines()[-1].startswith("lingo train: a hang: nothing happened for 8 s.")
    stacks = (runs.folder / "run" / "hang.txt").read_text()
    assert 'loop.py", line' in stacks
    assert stacks.count("(most recent call first)") >= 2
    assert runs.status("run").startswith("failed at step ")
    runs.assert_resumes(reference, "--hang_timeout=8")


@pytest.mark.parametrize("place", ["input", "evaluate"])
def test_a_hang_anywhere_in_the_loop_ends(runs, place):
    hung = runs.train("run", "--hang_timeout=8", inject=f"{place}:sleep=600@6")
    assert hung.returncode == 9, hung.stderr


def test_start_up_and_compiling_may_take_as_long_as_they_like_and_saving_longer(runs, reference):
    slow = "start:sleep=12@0 compile:sleep=12@0 save:sleep=12@3 commit:sleep=12@12"
    done = runs.train("run", "--hang_timeout=8", inject=slow)
    assert done.returncode == 0, done.stderr
    runs.assert_same(reference)


def test_a_save_that_never_ends_is_a_hang_though_it_is_the_last(runs, reference):
    hung = runs.train("run", "--hang_timeout=8", inject="commit:sleep=600@12")
    assert hung.returncode == 9, hung.stderr
    said = f"lingo train: a hang: nothing happened for {8 * SLOW_FACTOR} s."
    assert hung.stderr.splitlines()[-1].startswith(said)
    runs.assert_resumes(reference, "--hang_timeout=60")


@pytest.mark.parametrize("victim", ["watcher", "trainer"])
def test_a_watched_run_can_be_killed_at_either_process(runs, reference, victim):
    watched = runs.training("run", "--hang_timeout=60")
    process = runs.start(*watched, inject="step:sleep=600@5")
    runs.reach("run", 5, process)
    os.kill(process.pid if victim == "watcher" else trainer(process), signal.SIGKILL)
    assert runs.finish(process).returncode == (-9 if victim == "watcher" else 137)
    runs.assert_resumes(reference, "--hang_timeout=60")
