"""Servers that fail, are slow or cut connections cost time and nothing else."""

import os
import time

import pytest

from lingo.storage.bucket import commit, mirror, table
from lingo.storage.bucket.bucket import Bucket, BucketError
from lingo.storage.bucket.mirror import Kept, Mirror
from lingo.storage.files import DirectoryLocked
from tests.stand_ins.buckets import TROUBLE, proxy

ROUNDS = 12


def content(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in found
        if not path.name.startswith(".")
    }


def grow(folder, number):
    """Adds a row to a log, and a checkpoint."""
    checkpoint = folder / f"checkpoints/step_{number:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "data").write_bytes(os.urandom(10_000))
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(f"{number}\n")


def train(folder, address, rounds):
    """Grows a folder, and uploads it each time."""
    one = Mirror(folder, address)
    folder.mkdir(exist_ok=True)
    one.open()
    one.kept = Kept(2)
    for number in rounds:
        grow(folder, number)
        one.upload()
        one.wait()
    one.close(is_sound=True)


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_in_both_clouds_protocols_a_run_goes_from_machine_to_machine(
    request, kind, monkeypatch, tmp_path
):
    server = request.getfixturevalue("server" if kind == "s3" else "google_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    address = f"{kind}://bucket/{tmp_path.name}"
    train(tmp_path / "one", address, range(1, 3))
    holder = Mirror(tmp_path / "one", address)
    holder.open()
    with pytest.raises(DirectoryLocked, match="is in use by"):
        Mirror(tmp_path / "two", address).open()
    holder.close(is_sound=True)
    train(tmp_path / "two", address, range(3, 5))
    mirror.pull(address, tmp_path / "one", checkpoints=2)
    assert (tmp_path / "one/metrics.jsonl").read_text() == "1\n2\n3\n4\n"
    last = commit.read_newest(Bucket(address))
    assert set(Bucket(address).names(table.OBJECTS)) == last.objects


def test_with_trouble_in_a_seventh_of_all_requests_nothing_is_lost(server, monkeypatch, tmp_path):
    with proxy(server, part=0.15) as found:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        address = f"s3://bucket/{tmp_path.name}"
        begin = time.monotonic()
        train(tmp_path / "one", address, range(1, ROUNDS))
        mirror.pull(address, tmp_path / "two", checkpoints=None)
        assert time.monotonic() - begin < 120
        assert content(tmp_path / "two").items() <= content(tmp_path / "one").items()
        assert table.local_checkpoints(tmp_path / "two")[-1] == f"step_{ROUNDS - 1:08d}"
        last = commit.read_newest(Bucket(address))
        assert last.number == ROUNDS - 1
        assert set(Bucket(address).names(table.OBJECTS)) == last.objects
    assert sum(found.counts.values()) >= len(TROUBLE)


def test_a_server_that_only_fails_is_given_up_after_the_patience(server, monkeypatch):
    with proxy(server, part=1.0) as found:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        bucket = Bucket("s3://bucket/run", patience_seconds=1.0)
        found.kinds = ("503",)
        begin = time.monotonic()
        with pytest.raises(BucketError, match=r"it has failed \d+ times in 1 s"):
            bucket.put("x", b"1")
        assert time.monotonic() - begin < 30
