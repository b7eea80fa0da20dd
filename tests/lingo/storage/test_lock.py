"""The lock: one writer, whatever happens to the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from lingo.storage.files import StorageError
from lingo.storage.lock import DirectoryLocked, Lock

HOLD = """
import sys
from pathlib import Path
from lingo.storage.lock import Lock
Lock(Path(sys.argv[1])).acquire()
{then}
print("held", flush=True)
sys.stdin.read()
"""


def holder(path, then=""):
    """Starts a process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=then), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_holds_it(tmp_path):
    with holder(tmp_path / ".lock") as process:
        with pytest.raises(DirectoryLocked, match=f"process {process.pid} on .*, since ") as caught:
            Lock(tmp_path / ".lock").acquire()
        assert caught.value.exit_code == 6
        process.kill()
    Lock(tmp_path / ".lock").acquire()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_forked_child_that_lives_on_does_not_keep_it(tmp_path):
    fork = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), file=sys.stderr, flush=True)\n"
        "    os.close(0), os.close(1), time.sleep(60), os._exit(0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=fork), str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        child = int(process.stderr.readline())
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait()
        try:
            os.kill(child, 0)
            Lock(tmp_path / ".lock").acquire()
        finally:
            os.kill(child, signal.SIGKILL)


def test_released_it_can_be_taken_again(tmp_path):
    first, second = Lock(tmp_path / ".lock"), Lock(tmp_path / ".lock")
    first.acquire()
    with pytest.raises(DirectoryLocked):
        second.acquire()
    first.release()
    second.acquire()
    second.release(remove=True)
    assert os.listdir(tmp_path) == []


def test_a_lock_on_a_file_that_was_removed_is_not_enough(tmp_path, monkeypatch):
    lock, path = Lock(tmp_path / ".lock"), tmp_path / ".lock"
    opened, opens = os.open, []

    def open_and_lose(*args, **kwargs):
        descriptor = opened(*args, **kwargs)
        if not opens:
            path.unlink()  # as its holder does between our open and our flock
        opens.append(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    lock.acquire()
    assert len(opens) == 2
    assert path.exists()


def test_a_lock_file_with_nonsense_in_it_is_no_obstacle(tmp_path):
    with holder(tmp_path / ".lock") as process:
        (tmp_path / ".lock").write_text("{")
        with pytest.raises(DirectoryLocked, match="another process"):
            Lock(tmp_path / ".lock").acquire()
        process.kill()


def test_a_stale_lock_file_is_taken_over(tmp_path):
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "gone", "since": "long ago"}')
    Lock(tmp_path / ".lock").acquire()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"\.lock: .*symbolic link"):
        Lock(tmp_path / ".lock").acquire()
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_lock(tmp_path, make):
    make(tmp_path / ".lock")
    with pytest.raises(StorageError, match=r"cannot write .*\.lock"):
        Lock(tmp_path / ".lock").acquire()


def test_a_program_that_is_started_does_not_keep_it(tmp_path):
    lock = Lock(tmp_path / ".lock")
    lock.acquire()
    with subprocess.Popen(["sleep", "600"], close_fds=False) as process:
        lock.release()
        Lock(tmp_path / ".lock").acquire()
        process.kill()
