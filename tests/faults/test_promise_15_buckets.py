"""Promise 15: a run in a bucket equals a run in a directory, whatever is killed, late or cut.

A server on this machine answers as S3 does, another as Google's storage. Two caches stand for two
machines.
"""

import json
import signal
import uuid

import pytest

from lingo.cli.workers import free_addresses
from lingo.storage.bucket import commit
from lingo.storage.bucket.bucket import Bucket
from lingo.storage.bucket.results import RESULTS
from lingo.storage.bucket.table import OBJECTS
from tests.stand_ins.buckets import BUCKET, Server, gcs_server, proxy, s3_server

OFTEN = "--set=checkpoint.upload_minutes=0"
LONG = ("--set=max_steps=300", "--set=checkpoint.keep=2")
POINTS = range(3, 43, 2)  # of the writes of a process: its start, its first saves, deletions
OTHER = "other"


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def google_server():
    """An emulator behind a proxy that enforces generations, which the emulator ignores."""
    with gcs_server() as server:
        yield server


class Machines:
    """Two machines that train one run in a bucket; `run` in the folder leads to a local copy."""

    def __init__(self, runs, server, scheme="s3"):
        self.runs, self.server = runs, server
        self.address = f"{scheme}://{BUCKET}/{uuid.uuid4().hex}"

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


@pytest.fixture
def google_machines(runs, google_server):
    return Machines(runs, google_server, "gs")


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


@pytest.mark.parametrize("point", [6, 14, 23])  # also in the first upload, of the run's texts
def test_killed_in_an_upload_to_google_storage_it_goes_on_elsewhere(
    google_machines, reference, point
):
    killed = google_machines.train("one", inject=f"upload:kill@{point}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    google_machines.assert_ends_as(reference, OTHER)


def test_of_two_trainers_in_google_storage_the_second_is_refused(google_machines):
    first = google_machines.start("one", inject="step:sleep=600@5")
    google_machines.runs.reach_sleep(first)
    second = google_machines.train(OTHER)
    first.kill()
    assert google_machines.runs.finish(first).returncode == -signal.SIGKILL
    assert second.returncode == 6, second.stderr
    assert f"{google_machines.address} is in use by host " in second.stderr


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


def test_of_two_trainers_the_second_is_refused_and_takes_over_when_the_first_is_killed(
    machines, reference
):
    first = machines.start("one", inject="step:sleep=600@5")
    machines.runs.reach_sleep(first)
    second = machines.train(OTHER)
    assert second.returncode == 6, second.stderr
    assert f"{machines.address} is in use by host " in second.stderr
    assert f", process {first.pid}: stop it" in second.stderr
    first.kill()
    assert machines.runs.finish(first).returncode == -signal.SIGKILL
    machines.assert_ends_as(reference, OTHER)


def test_with_trouble_in_a_twentieth_of_all_requests_a_run_is_the_same(machines, reference):
    server = machines.server
    with proxy(server, part=0.05) as found:
        machines.server = Server(found.url)
        machines.assert_ends_as(reference, "one")
        copied = machines.lingo("third", "copy", f"--from={machines.address}", "--to=copy")
    assert copied.returncode == 0, copied.stderr
    assert machines.runs.digests("copy") == reference.digests("whole")
    assert sum(found.counts.values()) > 0


def test_a_run_that_is_copied_to_a_bucket_and_back_goes_on(machines, reference):
    runs = machines.runs
    done = runs.train("local", "--set=max_steps=5", "--set=checkpoint.every_steps=2")
    assert done.returncode == 0, done.stderr
    sent = machines.lingo("one", "copy", "--from=local", f"--to={machines.address}")
    assert sent.returncode == 0, sent.stderr
    back = machines.lingo("one", "copy", f"--from={machines.address}", "--to=run")
    assert back.returncode == 0, back.stderr
    runs.assert_resumes(reference)
    (runs.folder / "run").rename(runs.folder / "local_end")
    machines.assert_ends_as(reference, OTHER)


def test_every_verb_that_reads_a_run_reads_it_there(machines):
    assert machines.train("one", "--set=max_steps=3").returncode == 0
    run, trust = f"--run={machines.address}", f"--trust={machines.runs.folder / 'small.py'}"
    for verb, *flags in (
        ("show", trust),
        ("eval", trust),
        ("predict", trust, "--input=same", "--output=predicted.jsonl"),
        ("decode", trust, "--prompt=ab", "--max_tokens=2"),
        ("export", trust, "--format=savedmodel", "--signature=predict", "--output=exported"),
        ("checkpoint", "verify"),
    ):
        done = machines.lingo(OTHER, verb, *flags, run)
        assert done.returncode == 0, (verb, done.stderr)
    listed = machines.lingo(OTHER, "runs", f"s3://{BUCKET}")
    assert machines.address.rpartition("/")[2] in listed.stdout, listed.stderr


def rows(copy):
    """Returns the rows that `lingo eval` has written into a local copy."""
    lines = (copy / "eval_same/metrics.jsonl").read_text().splitlines()
    return list(map(json.loads, lines))


def test_results_of_an_evaluation_elsewhere_reach_the_bucket_while_a_run_trains(
    machines, reference, monkeypatch
):
    assert machines.train("one", "--set=max_steps=3").returncode == 0
    first = machines.start("one", inject="step:sleep=600@5")
    machines.runs.reach_sleep(first)
    run, trust = f"--run={machines.address}", f"--trust={machines.runs.folder / 'small.py'}"
    evaluated = machines.lingo(OTHER, "eval", run, trust)
    assert evaluated.returncode == 0, evaluated.stderr
    (wanted,) = rows(machines.copy(OTHER))
    assert wanted["step"] == 3
    assert machines.lingo("third", "show", run, trust).returncode == 0
    assert rows(machines.copy("third")) == [wanted]
    first.kill()
    assert machines.runs.finish(first).returncode == -signal.SIGKILL
    machines.assert_ends_as(reference, "one")  # this trainer takes the results
    bucket, events = machines.bucket(monkeypatch), machines.copy(OTHER).glob("eval_same/events*")
    assert {f"eval_same/{path.name}" for path in events} <= {*commit.read_newest(bucket).table}
    assert bucket.names(RESULTS) == []
    assert rows(machines.copy("one")) == [wanted]


SHARDED = ("--set=runtime=Replicated", "--set=runtime.shard_update=True")


def train_together(machines, prefix, *flags):
    """Trains on four machines, which have no disk in common; returns how their processes end."""
    cluster = {"worker": free_addresses(4)}
    started = []
    for index in range(4):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = machines.environment(f"{prefix}{index}") | {"TF_CONFIG": json.dumps(task)}
        call = ("train", f"--exp={machines.runs.experiment}", f"--logdir={machines.address}")
        started.append(machines.runs.start(*call, *flags, own_imports=True, **environment))
    return [machines.runs.finish(process) for process in started]


def test_four_workers_without_a_common_disk_go_on_from_the_bucket(machines):
    runs = machines.runs
    local = ("launch", "--workers=4", "--", "train", f"--exp={runs.experiment}")
    whole = runs.lingo(*local, f"--logdir={runs.folder / 'whole'}", *SHARDED, "--set=max_steps=5")
    assert whole.returncode == 0, whole.stderr
    for prefix, steps in (("first", 3), ("second", 5)):  # eight machines in all
        ended = train_together(machines, prefix, *SHARDED, f"--set=max_steps={steps}")
        assert [done.returncode for done in ended] == [0] * 4, [done.stderr for done in ended]
    assert "resumed from" in ended[0].stdout
    of_third = (machines.copy(f"second{i}") / "checkpoints/step_00000003" for i in range(1, 4))
    assert all((path / "MANIFEST.json").exists() for path in of_third)
    copied = machines.lingo(OTHER, "copy", f"--from={machines.address}", "--to=run")
    assert copied.returncode == 0, copied.stderr
    assert runs.digests("run") == runs.digests("whole")


def test_four_workers_train_a_run_in_a_bucket(machines):
    runs = machines.runs
    flags = ("--set=runtime=Replicated", "--set=max_steps=4")
    exp = f"--exp={runs.experiment}"
    place = f"--logdir={machines.address}"
    launch = ("launch", "--workers=4", "--", "train")
    local = runs.lingo(*launch, exp, f"--logdir={runs.folder / 'whole'}", *flags)
    assert local.returncode == 0, local.stderr
    done = machines.lingo("one", *launch, exp, place, OFTEN, *flags)
    assert done.returncode == 0, done.stderr
    copied = machines.lingo(OTHER, "copy", f"--from={machines.address}", "--to=run")
    assert copied.returncode == 0, copied.stderr
    assert runs.digests("run") == runs.digests("whole")
