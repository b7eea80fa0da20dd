"""Promise 12: a lost worker ends the others soon, by name, and the same command goes on."""

import fcntl
import json
import os
import pathlib
import signal
import time

import pytest

from lingo.processes.processes import VARIABLE, LostWorker

CHUNKS = "Replicated(shard_update=True)"
ENGINE = '''

import os
import pathlib
import time

from lingo.processes.group import Group
from lingo.runtimes.local import Local
from lingo.processes.processes import ALONE, cluster
from lingo.processes.group import Patience

PLACE = pathlib.Path("{place}")


class Files:
    """A coordination service of files. It outlives the leader, as a real one would not."""

    def __init__(self, name):
        self.folder = PLACE / name

    def put(self, key, value):
        file = self.path(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}-{os.getpid()}-{time.monotonic_ns()}")
        new.write_text(value)
        new.rename(file)

    def get(self, key, *, timeout_seconds):
        end = time.monotonic() + timeout_seconds
        while True:
            try:
                return self.path(key).read_text()
            except OSError:
                if time.monotonic() > end:
                    return None
            time.sleep(0.005)

    def delete(self, key):
        self.path(key).unlink(missing_ok=True)

    def path(self, key):
        return self.folder / key.replace("/", "-")

    def abort(self, reason):
        pass


class Together(Local):
    """Processes that each do all of the work."""

    def join(self):
        found = cluster(os.environ)
        if found is None:
            return ALONE
        name = found.workers[0].replace(":", "-")
        return Group(found, Files(name), patience=Patience(beat=0.2, silence=4.0, blame=2.0))


@experiment
def several():
    """The same on several processes."""
    return small().set(runtime=Together.params())
'''


@pytest.fixture
def several(runs):
    """The folder with an experiment for several processes."""
    file = pathlib.Path(runs.experiment.partition(":")[0])
    engine = ENGINE.replace("{place}", str(runs.folder / "service"))
    file.write_text(file.read_text() + engine)
    runs.experiment = f"{file}:several"
    return runs


def launched(runs, *flags, workers=2, launch=()):
    return ("launch", f"--workers={workers}", *launch, "--", *runs.training("run", *flags))


def workers(process):
    """Returns the processes that `lingo launch` has started, in their order."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(map(int, children.read_text().split()))


def is_there(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_as_if_nothing_had_happened(runs, reference):
    done = runs.lingo(*launched(runs))
    assert (done.returncode, done.stderr) == (0, "")
    runs.assert_same(reference)


def test_two_make_the_run_of_one_and_only_the_first_speaks(several, reference):
    done = several.lingo(*launched(several, launch=(f"--logs={several.folder}/logs",)))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.startswith("[0] ") for line in done.stdout.splitlines())
    assert (several.folder / "logs/worker_1.log").read_bytes() == b""
    kept = (several.folder / "logs/worker_0.log").read_text()
    assert kept == "".join(f"{line[4:]}\n" for line in done.stdout.splitlines())
    several.assert_same(reference)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_ends_the_other_which_saves(several, reference, victim):
    process = several.start(*launched(several), inject="step:sleep=0.5@4-9")
    several.reach("run", 5, process)
    os.kill(workers(process)[victim], signal.SIGKILL)
    since = time.monotonic()
    ended = several.finish(process)
    assert time.monotonic() - since < 60
    assert ended.returncode == 137
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"lingo launch: worker {victim} (127.0.0.1:")
    assert last.endswith(" was killed by SIGKILL")
    assert f"[{1 - victim}] lingo train: worker {victim} (127.0.0.1:" in ended.stderr
    assert "gave no sign of life for 4 s" in ended.stderr
    saved = several.last_step("run")
    assert saved >= 5
    assert several.status("run") == f"failed at step {saved}"
    assert_as_if_nothing_had_happened(several, reference)


def test_a_worker_that_is_stopped_ends_the_other_and_is_killed(several, reference):
    process = several.start(*launched(several), inject="step:sleep=0.5@4-9")
    several.reach("run", 5, process)
    os.kill(workers(process)[1], signal.SIGSTOP)
    ended = several.finish(process)
    assert ended.returncode == 137, ended.stderr
    assert "[0] lingo train: worker 1 (127.0.0.1:" in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("lingo launch: worker 1 (127.0.0.1:")
    assert last.endswith(" was killed by SIGKILL")
    assert_as_if_nothing_had_happened(several, reference)


def test_a_worker_that_goes_on_after_the_others_have_gone_ends_too(several, reference):
    """As under a scheduler that does not kill it."""
    names = ["127.0.0.1:1", "127.0.0.1:2"]  # nothing listens there: files serve them
    both = []
    for index in range(2):
        config = {"cluster": {"worker": names}, "task": {"type": "worker", "index": index}}
        argv, variable = several.training("run"), {VARIABLE: json.dumps(config)}
        both.append(several.start(*argv, inject="step:sleep=0.5@4-9", **variable))
    several.reach("run", 5, both[0])
    both[0].send_signal(signal.SIGSTOP)
    other = several.finish(both[1])
    assert other.returncode == LostWorker.exit_code, other.stderr
    assert f"lingo train: worker 0 ({names[0]}) gave no sign of life" in other.stderr
    both[0].send_signal(signal.SIGCONT)
    stopped = several.finish(both[0])
    assert stopped.returncode == LostWorker.exit_code, stopped.stderr
    assert_as_if_nothing_had_happened(several, reference)


@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("launch", signal.SIGTERM),
        ("leader", signal.SIGHUP),
        ("other", signal.SIGINT),
    ],
)
def test_a_signal_to_one_or_to_all_stops_all_at_the_same_step(several, reference, target, number):
    process = several.start(*launched(several), inject="step:sleep=0.5@4-9")
    several.reach("run", 5, process)
    told = {"launch": process.pid, "leader": workers(process)[0], "other": workers(process)[1]}
    os.kill(told[target], number)
    ended = several.finish(process)
    assert ended.returncode == 128 + number, ended.stderr
    assert several.status("run").startswith("stopped at step ")
    assert several.status("run").endswith(f" {several.last_step('run')}")
    assert_as_if_nothing_had_happened(several, reference)


@pytest.mark.parametrize(
    "instants",
    [
        ("save:term@6",),
        ("start:term@0", "compile:term@0", "step:term@4"),
    ],
    ids=" ".join,
)
def test_a_signal_at_any_time_is_heeded_together(several, reference, instants):
    for instant in instants:
        ended = several.lingo(*launched(several), inject=instant)
        assert ended.returncode == 143, f"{instant}: {ended.stderr}"
    assert_as_if_nothing_had_happened(several, reference)


def test_a_worker_that_fails_by_itself_ends_the_others_with_its_code(several, reference):
    (several.folder / "run").mkdir()
    with open(several.folder / "run/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = several.lingo(*launched(several))
    assert ended.returncode == 6, ended.stderr
    assert "[0] lingo train: " in ended.stderr
    assert "[1] lingo train: worker 0 (127.0.0.1:" in ended.stderr
    assert "has ended: DirectoryLocked" in ended.stderr


def test_workers_do_not_outlive_the_launcher(several):
    process = several.start(*launched(several), inject="step:sleep=600@4")
    several.reach("run", 4, process)
    left = workers(process)
    process.kill()
    several.finish(process)
    end = time.monotonic() + 30
    while any(map(is_there, left)):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_hang_of_one_worker_ends_all(several, reference):
    flags = ("--hang_timeout=8",)
    ended = several.lingo(*launched(several, *flags), inject="step:hang=600@7")
    assert ended.returncode in (1, 9), ended.stderr
    assert_as_if_nothing_had_happened(several, reference)


@pytest.mark.parametrize(
    ("mesh", "victim", "saved"),
    [
        ("Replicated", 0, 5),
        (CHUNKS, 0, 3),
        ("Mesh(data=2)", 1, 5),
    ],
)
def test_a_worker_of_a_real_engine_that_is_killed_ends_the_other_which_saves(
    runs, mesh, victim, saved
):
    """It saves the step that it is at, unless chunks of its slots are lost: step 3 is saved."""
    flags = (f"--set=runtime={mesh}",)
    command = ("launch", "--workers=2", "--")
    whole = runs.lingo(*command, *runs.training("whole", *flags))
    assert whole.returncode == 0, whole.stderr
    process = runs.start(*launched(runs, *flags), inject="step:sleep=0.5@4-9")
    runs.reach("run", 5, process)
    since = time.monotonic()
    os.kill(workers(process)[victim], signal.SIGKILL)
    ended = runs.finish(process)
    assert time.monotonic() - since < 60
    assert ended.returncode == 137, ended.stderr
    assert f"[{1 - victim}] lingo train: worker {victim} (127.0.0.1:" in ended.stderr
    assert runs.last_step("run") >= saved
    done = runs.lingo(*launched(runs, *flags))
    assert done.returncode == 0, done.stderr
    runs.assert_same(runs)


@pytest.mark.parametrize(
    ("mesh", "number"),
    [
        ("Replicated", signal.SIGTERM),
        (CHUNKS, signal.SIGTERM),
        ("Mesh(data=2)", signal.SIGINT),
    ],
)
def test_a_signal_to_one_worker_of_a_real_engine_stops_all_and_one_device_goes_on(
    runs, mesh, number
):
    process = runs.start(*launched(runs, f"--set=runtime={mesh}"), inject="step:sleep=0.5@4-9")
    runs.reach("run", 5, process)
    os.kill(workers(process)[1], number)
    ended = runs.finish(process)
    assert ended.returncode == 128 + number, ended.stderr
    assert runs.status("run") == f"stopped at step {runs.last_step('run')}"
    done = runs.lingo(*runs.training("run", "--set=runtime=Local"))
    assert done.returncode == 0, done.stderr
    assert runs.last_step("run") == 12
