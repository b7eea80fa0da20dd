"""Promise 1: a kill at any instant loses at most the steps since the last save."""

import os
import random
import shutil
import signal
import time

import pytest

LONG = ("--set=max_steps=200", "--set=checkpoint.every_steps=10", "--set=evaluate.every_steps=50")
KILLS = 4


@pytest.mark.parametrize("instant", ["save:kill@6", "commit:kill@6", "step:kill@7"])
def test_a_killed_run_goes_on_as_if_nothing_had_been(runs, reference, instant):
    killed = runs.train("run", inject=instant)
    assert killed.returncode == -signal.SIGKILL
    runs.assert_resumes(reference)


def test_so_does_one_that_is_killed_again_and_again(runs, reference):
    for instant in ("start:kill@0", "compile:kill@0", "report:kill@1", "evaluate:kill@6"):
        assert runs.train("run", inject=instant).returncode == -signal.SIGKILL, instant
    test_a_killed_run_goes_on_as_if_nothing_had_been(runs, reference, "report:kill@12")


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("when", [2, 5, 8])
def test_a_kill_among_the_first_texts_of_a_run_leaves_no_trace(runs, reference, when):
    kill = ("-e", "trace=rename", "-e", f"inject=rename:signal=SIGKILL:when={when}")
    strace = ("strace", "-f", "-qq", "-o", "/dev/null", *kill)
    killed = runs.train("run", prefix=strace, PYTHONDONTWRITEBYTECODE="1")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    runs.assert_resumes(reference)
    assert numbered(runs.folder / "run") == []


def numbered(folder):
    """Returns the texts that are kept because another took their place."""
    return [name for name in os.listdir(folder) if name.split(".")[-2:-1] == ["1"]]


def test_kills_at_random_leave_no_trace(runs):
    """Three after some steps, one while the process starts; each as the seed will have it."""
    whole = runs.train("whole", *LONG)
    assert whole.returncode == 0, whole.stderr
    draw = random.Random(0)
    starting = set(draw.sample(range(KILLS), 1))
    killed = 0
    for number in range(KILLS):
        process = runs.start(*runs.training("run", *LONG))
        if number not in starting:
            runs.reach("run", runs.last_step("run") + draw.randint(5, 16), process)
        time.sleep(draw.uniform(0, 3 if number in starting else 0.1))
        process.kill()
        killed += runs.finish(process).returncode == -signal.SIGKILL
    assert killed == KILLS
    runs.assert_resumes(runs, *LONG)
    assert runs.status("run") == runs.status("whole") == "done at step 200"
    assert numbered(runs.folder / "run") == []


def test_a_killed_export_leaves_no_folder_and_the_next_clears_up(runs, reference):
    place = runs.folder / "exports"
    place.mkdir()
    run = f"--run={reference.folder / 'whole'}"
    trust = f"--trust={reference.folder / 'small.py'}"
    command = ("export", run, trust, "--format=savedmodel", "--signature=predict")
    process = runs.start(*command, "--output=exports/out")
    runs.reach_entry(place, process)
    process.kill()
    assert runs.finish(process).returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    assert left.name == f".out.{process.pid}"
    done = runs.lingo(*command, "--output=exports/out")
    assert done.returncode == 0, done.stderr
    assert [*place.iterdir()] == [place / "out"]
