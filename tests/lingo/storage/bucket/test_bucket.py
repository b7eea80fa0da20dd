"""A bucket's objects are whole or absent, and its errors say what to do."""

import os
import threading
import time

import pytest

from lingo.config.base.errors import MissingPackage
from lingo.storage.bucket import bucket as module
from lingo.storage.bucket.bucket import Bucket, BucketError, MissingObject


def test_objects_are_listed_read_in_ranges_and_deleted(bucket):
    assert bucket.names() == []
    bucket.put("a/x", b"0123456")
    bucket.put("ab/y", b"")
    assert bucket.names() == ["a/x", "ab/y"]
    assert bucket.names("a") == ["a/x"]
    assert (bucket.read("a/x"), bucket.read("a/x", 2, 4)) == (b"0123456", b"23")
    bucket.delete("a/x")
    bucket.delete("a/x")
    assert bucket.names() == ["ab/y"]
    with pytest.raises(MissingObject, match=r"cannot read .*/a/x: it is not there"):
        bucket.read("a/x")


def test_one_of_many_writers_creates_an_object_and_it_stays(bucket):
    results = {}

    def create(number):
        results[number] = bucket.put_if_absent("x", b"%d" % number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, has_won in results.items() if has_won]
    assert bucket.read("x") == b"%d" % winner


def test_a_writer_whose_answer_got_lost_learns_that_it_has_won(bucket):
    assert bucket.put_if_absent("x", b"mine")
    assert bucket.put_if_absent("x", b"mine")
    assert not bucket.put_if_absent("x", b"another's")


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of aiohttp, by gcsfs
def test_a_part_of_a_file_comes_back_bit_for_bit(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 5 << 20)  # the least that S3 takes as a part
    content = os.urandom(12 << 20)
    (tmp_path / "up").write_bytes(content)
    with open(tmp_path / "up", "rb") as file:
        digest = bucket.upload("x", file, start=3, stop=len(content))
    with open(tmp_path / "down", "wb") as file:
        bucket.download("x", file, size=len(content) - 3, sha256=digest)
    assert (tmp_path / "down").read_bytes() == content[3:]


def test_a_file_that_becomes_shorter_is_told_at_once(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 4)
    (tmp_path / "up").write_bytes(b"0123456")
    begin = time.monotonic()
    with (
        open(tmp_path / "up", "rb") as file,
        pytest.raises(BucketError, match="up has become shorter while it was read"),
    ):
        memory.upload("x", file, start=0, stop=8)
    assert time.monotonic() - begin < module.PATIENCE_SECONDS / 2


def test_a_changed_byte_is_noticed(bucket, tmp_path):
    bucket.put("x", b"abc")
    digest = module.hashlib.sha256(b"abd").hexdigest()
    with (
        open(tmp_path / "down", "wb") as file,
        pytest.raises(BucketError, match="/x is damaged"),
    ):
        bucket.download("x", file, size=3, sha256=digest)


def failing(bucket, errors):
    """Makes the bucket's next writes fail with errors; returns how many were tried."""
    tries, write = [], bucket._files.pipe_file

    def pipe_file(*args, **options):
        tries.append(args)
        if errors:
            raise errors.pop(0)
        return write(*args, **options)

    bucket._files.pipe_file = pipe_file
    return tries


def test_what_may_pass_is_tried_again(memory, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.001)
    tries = failing(memory, [TimeoutError(), ConnectionResetError(), OSError(121, "500")])
    memory.put("x", b"1")
    assert len(tries) == 4
    assert memory.read("x") == b"1"


def test_it_is_given_up_after_the_stated_time(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.01)
    bucket = Bucket("memory://b/given_up", patience_seconds=0.2)
    tries = failing(bucket, [TimeoutError()] * 100_000)
    with pytest.raises(BucketError, match=r"it has failed \d+ times in 0 s: is the network up"):
        bucket.put("x", b"1")
    assert len(tries) > 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("Access Denied"), "these credentials may not write in memory://"),
        (FileNotFoundError("b"), "there is no bucket memory://b.*: make the bucket first"),
        (OSError(22, "bad"), "the server has refused it"),
    ],
)
def test_what_will_not_pass_is_told_at_once(memory, error, said):
    tries = failing(memory, [error])
    with pytest.raises(BucketError, match=said):
        memory.put("x", b"1")
    assert len(tries) == 1


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[gcs\]'"):
        Bucket("gs://bucket/run")
