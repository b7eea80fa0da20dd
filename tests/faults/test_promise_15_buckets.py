"""Promise 15: a run in a bucket is that of a directory, whatever is killed, late or cut.

A server on this machine answers as S3 does. Two caches stand for two machines.
"""

import signal
import uuid

import pytest

from lingo.storage.bucket import commit
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.bucket.table import OBJECTS
from tests.stand_ins.buckets import BUCKET, s3_server

OFTEN = "--set=checkpoint.upload_minutes=0"
LONG = ("--set=max_steps=300", "--set=checkpoint.keep=2")
POINTS = range(3, 43, 2)  # of the writes of a process: its start, its first saves, deletions
OTHER = "other"


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


class Machines:
    """Two machines that train one run in a bucket; `run` in the folder leads to a local copy."""

    def __init__(self, runs, server):
        self.runs, self.server = runs, server
        self.address = f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def copy(self, machine):
        """Returns the path of a machine's local copy."""
        return self.runs.folder / machine / self.address.replace("://", "/")

    def environment(self, machine):
        folder = str(self.runs.folder / machine)
        return self.server.environment | {"LINGO_BUCKET_CACHE": folder}

    def start(self, machine, *flags, inject=""):
        """Starts to train on a machine."""
        exp = f"--exp={self.runs.experiment}"
        call = ("train", exp, f"--logdir={self.address}", OFTEN, *flags)
        return self.runs.start(*call, inject=inject, **self.environment(machine))

    def train(self, machine, *flags, inject=""):
        """Trains on a machine until the process ends."""
        return self.runs.finish(self.start(machine, *flags, inject=inject))

    def lingo(self, machine, *arguments):
        """Runs another verb on a machine."""
        return self.runs.lingo(*arguments, **self.environment(machine))

    def assert_ends_as(self, reference, machine):
        """Trains to the end on a machine, and compares its copy with an undisturbed local run."""
        done = self.train(machine)
        assert done.returncode == 0, done.stderr
        self.assert_same(reference, machine)

    def assert_same(self, reference, machine, *, status="done at step 12"):
        (self.runs.folder / "run").unlink(missing_ok=True)
        (self.runs.folder / "run").symlink_to(self.copy(machine))
        self.runs.assert_same(reference)
        assert self.runs.status("run") == status

    def bucket(self, monkeypatch):
        """Returns the run's folder in the bucket."""
        for name, value in self.server.environment.items():
            monkeypatch.setenv(name, value)
        return Bucket(self.address)


@pytest.fixture
def machines(runs, server):
    return Machines(runs, server)


def test_a_run_in_a_bucket_is_that_of_a_directory(machines, reference, monkeypatch):
    machines.assert_ends_as(reference, "one")
    bucket = machines.bucket(monkeypatch)
    last = commit.read_newest(bucket)
    assert set(bucket.names(OBJECTS)) == last.objects  # nothing is left over
    shown = machines.lingo(OTHER, "checkpoint", "list", f"--run={machines.address}")
    assert shown.returncode == 0, shown.stderr
    machines.assert_same(reference, OTHER)


def test_another_machine_goes_on_from_the_bucket_bit_for_bit(machines, reference):
    done = machines.train("one", "--set=max_steps=7")
    assert done.returncode == 0, done.stderr
    machines.assert_ends_as(reference, OTHER)


@pytest.mark.parametrize("point", [14, 23])  # among a checkpoint's files, and before its commit
def test_killed_in_an_upload_it_goes_on_there_and_elsewhere(machines, reference, point):
    killed = machines.train("one", inject=f"upload:kill@{point}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    machines.assert_ends_as(reference, OTHER if point == 14 else "one")


def test_killed_at_twenty_writes_one_after_the_other_on_two_machines(machines):
    whole = machines.runs.train("whole", *LONG)
    assert whole.returncode == 0, whole.stderr
    for number, point in enumerate(POINTS):
        machine = ("one", OTHER)[number % 3 == 2]
        killed = machines.train(machine, *LONG, inject=f"upload:kill@{point}")
        assert killed.returncode == -signal.SIGKILL, (point, killed.stdout, killed.stderr)
    done = machines.train("third", *LONG)
    assert done.returncode == 0, done.stderr
    machines.assert_same(machines.runs, "third", status="done at step 300")
