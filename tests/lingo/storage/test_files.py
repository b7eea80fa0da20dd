"""Small files are there whole or not at all; a lock has one holder, whatever happens to others."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from lingo.config.base.errors import ParamError
from lingo.storage import files


def test_the_new_text_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "note.txt"
    files.write_text(path, "old\r\n")
    files.write_text(path, "new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert os.listdir(tmp_path) == ["note.txt"]


def test_a_failed_write_names_path_and_free_bytes_and_leaves_nothing(tmp_path):
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(
        files.StorageError, match=r"cannot write .*note\.txt: .* bytes free"
    ) as caught:
        files.write_text(tmp_path / "note.txt", "text")
    assert caught.value.exit_code == 10
    assert os.listdir(tmp_path) == ["note.txt"]
    with pytest.raises(files.StorageError, match="No such file"):
        files.write_text(tmp_path / "a" / "b" / "note.txt", "text")


def test_a_new_folder_has_its_name_when_it_is_complete_and_an_error_leaves_nothing(tmp_path):
    with files.new_folder(tmp_path / "out") as partial:
        (partial / "note.txt").write_text("whole")
        assert not (tmp_path / "out").exists()
    assert [*tmp_path.rglob("*.txt")] == [tmp_path / "out" / "note.txt"]
    with pytest.raises(ZeroDivisionError), files.new_folder(tmp_path / "other"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(ParamError, match="out exists"), files.new_folder(tmp_path / "out"):
        pass


def test_a_new_folder_clears_what_killed_processes_left_of_it_and_no_more(tmp_path):
    for name in (".out.1", ".other.1", ".out.1.kept", ".out.x"):
        (tmp_path / name / "deep").mkdir(parents=True)
    with files.new_folder(tmp_path / "out") as partial:
        left = {".other.1", ".out.1.kept", ".out.x"}
        assert {*os.listdir(tmp_path)} == {*left, partial.name}
        files._clear_partial_folders(tmp_path / "out")  # as another process does
        assert partial.exists()
    assert {*os.listdir(tmp_path)} == {*left, "out"}


def test_what_is_appended_begins_a_new_file_in_its_own_way(tmp_path):
    path = tmp_path / "rows"
    for data in (b"a", b"b"):
        files.append(path, data, start=b"#")
    assert path.read_bytes() == b"#ab"


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "rows"
    files.append(path, b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))  # room for two bytes of five
    try:
        with pytest.raises(files.StorageError, match="rows: No space left"):
            files.append(path, b"after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("/a/part-0.index.tempstate42; No space left on device [Op:S]", "No space left on device"),
        ("Failed to rename: /a.tempstate1 to: /a; Input/output error", "Input/output error"),
        ("OOM when allocating tensor [Op:SaveV2]\nHint: If you want to see", "out of memory"),
        ("{{node save}} Another profiler is running. [Op:X]", "Another profiler is running."),
    ],
)
def test_an_error_of_tensorflow_is_told_by_what_the_system_said(message, reason):
    class OpError(Exception):
        """An error as TensorFlow raises it."""

    error = OpError()
    error.message = message
    assert files.describe_os_error(error) == reason


# ---- links -------------------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """A directory `run` with a link to the folder `outside`, and one to a file in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "run/rows").symlink_to(tmp_path / "outside/precious")
    yield tmp_path / "run"
    assert os.listdir(tmp_path / "outside") == ["precious"]
    assert (tmp_path / "outside/precious").read_text() == "kept"


def test_nothing_is_written_through_a_link(planted):
    with pytest.raises(files.StorageError, match=r"run/rows: it is a link.* by its target\.$"):
        files.append(planted / "rows", b"x")
    with pytest.raises(OSError, match="it is a link"):
        files.open_inside(planted / "rows", "rb+")
    files.write_text(planted / "rows", "new")  # takes the place of the link
    assert (planted / "rows").read_text() == "new"


def test_nothing_is_written_in_a_folder_that_a_link_leads_to(planted):
    file, options = planted / "folder/precious", {"root": planted}
    with pytest.raises(files.StorageError, match="it is a link"):
        files.append(file, b"x", **options)
    with pytest.raises(files.StorageError, match="it is a link"):
        files.write_text(file, "x", **options)
    for inner in ("folder", "folder/deeper"):
        with (
            pytest.raises(OSError, match="it is a link"),
            files.open_folder(planted / inner, make=True, **options),
        ):
            pass


def test_the_root_itself_may_be_a_link(planted, tmp_path):
    (tmp_path / "alias").symlink_to(planted)
    with files.open_folder(tmp_path / "alias/new/deep", root=tmp_path / "alias", make=True):
        assert (planted / "new/deep").is_dir()
    files.append(tmp_path / "alias/new/log", b"x", root=tmp_path / "alias")
    files.write_text(tmp_path / "alias/note", "x")
    assert sorted(os.listdir(planted)) == ["folder", "new", "note", "rows"]


def test_only_a_file_is_appended_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(files.StorageError, match="it is a named pipe, not a file"):
        files.append(tmp_path / "pipe", b"x")
    os.close(reader)


# ---- the lock ----------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from lingo.storage.files import Lock
Lock(Path(sys.argv[1])).acquire()
{then}
print("held", flush=True)
sys.stdin.read()
"""


def holder(path, then=""):
    """Starts a process that holds the lock until its input ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD.format(then=then), str(path)]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".lock"


def test_a_second_process_is_told_who_holds_it(path):
    with holder(path) as process:
        with pytest.raises(
            files.DirectoryLocked, match=f"process {process.pid} on .*, since "
        ) as caught:
            files.Lock(path).acquire()
        assert caught.value.exit_code == 6
        path.write_text("{")
        with pytest.raises(files.DirectoryLocked, match="another process"):
            files.Lock(path).acquire()
        process.kill()
    files.Lock(path).acquire()
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_forked_child_that_outlives_the_holder_does_not_keep_it(path):
    fork = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), file=sys.stderr, flush=True)\n"
        "    os.close(0), os.close(1), time.sleep(60), os._exit(0)"
    )
    with holder(path, fork) as process:
        child = int(process.stderr.readline())
        process.kill()
        process.wait()
        try:
            os.kill(child, 0)
            files.Lock(path).acquire()
        finally:
            os.kill(child, signal.SIGKILL)


def test_after_its_release_it_can_be_taken_again(path):
    first, second = files.Lock(path), files.Lock(path)
    first.acquire()
    with pytest.raises(files.DirectoryLocked):
        second.acquire()
    first.release()
    second.acquire()
    second.release(remove=True)
    assert not path.exists()


def test_whether_a_lock_is_taken_is_known_without_a_file_of_ones_own(path):
    asked, other = files.Lock(path), files.Lock(path)
    assert not asked.is_taken()
    assert not path.exists()
    other.acquire()
    assert asked.is_taken()
    other.release()
    assert not asked.is_taken()


def test_a_lock_on_a_file_that_was_removed_is_not_enough(path, monkeypatch):
    lock, opened, opens = files.Lock(path), os.open, []

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


def test_a_link_is_not_followed(tmp_path, path):
    (tmp_path / "precious").write_text("kept")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(files.StorageError, match=r"\.lock: .*symbolic link"):
        files.Lock(path).acquire()
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize(
    ("make", "reason"),
    [(os.mkdir, "Is a directory"), (os.mkfifo, "it is a named pipe, not a file")],
)
def test_only_a_file_is_a_lock(path, make, reason):
    make(path)
    with pytest.raises(files.StorageError, match=rf"cannot write .*\.lock: {reason}"):
        files.Lock(path).acquire()
    assert path.exists()


def test_a_program_that_is_started_does_not_keep_it(path):
    lock = files.Lock(path)
    lock.acquire()
    with subprocess.Popen(["sleep", "600"], close_fds=False) as process:
        lock.release()
        files.Lock(path).acquire()
        process.kill()
