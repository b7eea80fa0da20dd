"""Files are found each once, and nothing that a pattern asks for is left out in silence."""

import errno
import glob
import os
import signal
import socket

import pytest

from lingo.data.files import (
    DataError,
    File,
    FilePattern,
    blocks,
    list_files,
    open_file,
    refuse_compressed,
)

PATTERNS = (
    "* *.txt **/*.txt sub/**/*.txt */* ** sub/* a.txt [ab].txt **/d* nothing */nothing"
    " sub/../*.txt .* **/deep/* sub a.txt/x ?.txt"
)
NAMES = ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "sub/e.md", ".hidden/f.txt", ".g.txt")


@pytest.fixture(autouse=True)
def _nothing_waits():
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def root(tmp_path):
    for name in NAMES:
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "root"


def names(root, pattern):
    return [file.name for file in list_files([FilePattern(str(root), pattern)])]


@pytest.mark.parametrize("pattern", PATTERNS.split())
def test_patterns_mean_what_they_mean_to_the_standard_library(root, pattern):
    found = set(glob.glob(pattern, root_dir=root, recursive=True))
    expected = sorted(name for name in found if (root / name).is_file())
    assert names(root, pattern) == expected


def test_a_file_is_found_once_also_by_several_wildcards_of_any_depth(root):
    assert names(root, "**/**/*.md") == names(root, "**/sub/**/*.md") == ["sub/e.md"]


def test_links_that_lead_back_end(root):
    for name in "xyz":
        (root / name).symlink_to(root)
        (root / "sub" / name).symlink_to("..")
    assert names(root, "**/*.txt") == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]


def test_a_directory_that_links_lead_to_twice_is_entered_once(root, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/z.txt").write_text("z")
    for name in ("m", "n"):
        (root / name).symlink_to(tmp_path / "other")
    (root / "alias").symlink_to(root / "sub")
    expected = ["a.txt", "b.txt", "m/z.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert names(root, "**/*.txt") == expected


def test_what_is_no_file_is_an_error_not_a_wait(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(DataError, match=r"pipe is a named pipe, not a file: leave it out"):
        names(root, "*")
    (root / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root)  # a socket's path is short
        server.bind("socket")
        os.chdir(here)
        with pytest.raises(DataError, match="socket is a socket, not a file"):
            names(root, "**/*")
    (root / "socket").unlink()
    (root / "null").symlink_to("/dev/null")
    with pytest.raises(DataError, match="null is a device, not a file"):
        names(root, "null")


def test_a_link_that_leads_nowhere_or_to_itself_is_an_error(root):
    (root / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(DataError, match=r"loop\.txt cannot be read: Too many levels"):
        names(root, "*.txt")
    assert names(root, "**/*.md") == ["sub/e.md"]


def test_a_directory_that_cannot_be_listed_is_an_error(root, monkeypatch):
    scandir = os.scandir

    def denied(path):
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"deep cannot be listed: Permission denied"):
        names(root, "**/*.txt")


def test_a_file_that_became_a_pipe_is_an_error_not_a_wait(root):
    (file,) = list_files([FilePattern(str(root), "a.txt")])
    (root / "a.txt").unlink()
    os.mkfifo(root / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt cannot be read: it is a named pipe, not a file"):
        file.read(0, 1)


@pytest.mark.parametrize(
    "change", [lambda path: os.truncate(path, 2), lambda path: os.utime(path, ns=(7, 7))]
)
def test_a_file_that_changes_while_it_is_read_is_an_error(root, change):
    (file,) = list_files([FilePattern(str(root), "a.txt")])

    def read_whole():
        with file.open() as read:
            assert read(0, 1) == b"a"
            change(root / "a.txt")
            read(1, 5)

    with pytest.raises(DataError, match=r"a\.txt(: wanted bytes 1 to 5, got 1| has changed since)"):
        read_whole()


def shards(folder, *numbers, total=5, form="x-{}.tfrecord"):
    for number in numbers:
        (folder / form.format(f"{number:05d}-of-{total:05d}")).write_text("x")


@pytest.mark.parametrize("pattern", ["*", "x-*", "**", "**/*.tfrecord", "x-*-of-00005.tfrecord"])
@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ((0, 1, 3, 4), r"1 of 5 shards are missing: x-00002-of-00005\.tfrecord\. Put"),
        ((1, 2, 3), "2 of 5 shards are missing: x-00000.*x-00004"),
        ((2, 3, 5), "2 of 5 shards are missing: x-00001.*x-00004"),
    ],
)
def test_shards_that_are_missing_are_named(tmp_path, numbers, missing, pattern):
    shards(tmp_path, *numbers)
    with pytest.raises(DataError, match=missing):
        names(tmp_path, pattern)


def test_all_shards_or_those_that_a_pattern_asks_for_are_enough(tmp_path):
    shards(tmp_path, 0, 1, 2, 3, 4, form="zero-{}")
    shards(tmp_path, 1, 2, 3, 4, 5, form="one-{}")
    assert len(names(tmp_path, "*")) == 10
    shards(tmp_path, 0, 1, 2, total=99999, form="x-{}")
    assert len(names(tmp_path, "x-0000[0-2]-of-99999")) == 3
    assert len(names(tmp_path, "x-00001-of-99999")) == 1


def test_shards_of_several_sets_and_folders_are_counted_apart(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shards(tmp_path / folder, 0, 1, total=2)
        shards(tmp_path / folder, 0, 1, 2, total=3)
    assert len(names(tmp_path, "**")) == 10
    (tmp_path / "two/x-00001-of-00002.tfrecord").unlink()
    with pytest.raises(DataError, match=r"missing: two/x-00001-of-00002\.tfrecord\."):
        names(tmp_path, "*/*")


@pytest.mark.parametrize("pattern", ["*", "x-*", "**", "**/*.tfrecord", "x-*-of-00003.tfrecord"])
def test_a_directory_in_the_place_of_a_shard_is_an_error(tmp_path, pattern):
    shards(tmp_path, 0, 2, total=3)
    (tmp_path / "x-00001-of-00003.tfrecord").mkdir()
    with pytest.raises(DataError, match=r"x-00001-of-00003\.tfrecord is a directory, not a file"):
        names(tmp_path, pattern)


@pytest.mark.parametrize("pattern", ["*.txt", "**/*.txt", "*/data.txt", "*/data", "?/data*.txt"])
def test_a_directory_in_the_place_of_a_file_is_an_error(tmp_path, pattern):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.txt").write_text("x")
        (tmp_path / name / "data").write_text("x")
    (tmp_path / "c/data").mkdir(parents=True)
    (tmp_path / "c/data.txt").mkdir()
    (tmp_path / "d.txt").mkdir()
    with pytest.raises(DataError, match=r"(data|data\.txt|d\.txt) is a directory, not a file"):
        names(tmp_path, pattern)


def test_a_link_to_a_directory_is_no_shard(tmp_path):
    shards(tmp_path, 0, total=2)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x-00001-of-00002.tfrecord").symlink_to("elsewhere")
    with pytest.raises(DataError, match=r"x-00001-of-00002\.tfrecord is a directory, not a file"):
        names(tmp_path, "x-*")


MAGIC = {"xz": b"\xfd7zXZ\0", "zstd": b"(\xb5/\xfd", "zip": b"PK\x03\x04"}


@pytest.mark.parametrize("kind", MAGIC)
def test_what_is_compressed_is_refused(tmp_path, kind):
    (tmp_path / "a").write_bytes(MAGIC[kind])
    (file,) = list_files([FilePattern(str(tmp_path), "a")])
    with (
        file.open() as read,
        pytest.raises(DataError, match=f"by {kind}, but .* by un"),
    ):
        refuse_compressed(file, read)


def test_names_have_no_ending_of_gzip(tmp_path):
    for name in ("b.txt.gz", "a.gz.txt", "c.txt"):
        (tmp_path / name).write_text("")
    assert names(tmp_path, "*") == ["a.gz.txt", "b.txt", "c.txt"]


def test_names_are_the_same_wherever_the_files_are(root):
    found = list_files([FilePattern(str(root), "s*/*.txt", prefix="here/")])
    assert found == [File("here/sub/c.txt", f"{root}/sub/c.txt", 9, found[0].version)]


@pytest.mark.parametrize("error", [errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("pattern", ["sub/c.txt", "sub/*.txt", "**/*.txt", "*/e.md"])
def test_a_directory_that_cannot_be_looked_into_is_an_error(root, pattern, error, monkeypatch):
    look = os.stat

    def stat(path, **options):
        if "sub" in str(path):
            raise OSError(error, os.strerror(error), path)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(DataError, match=f"sub.* cannot be read: {os.strerror(error)}"):
        names(root, pattern)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_no_path_can_be_is_an_error(root, name):
    with pytest.raises(DataError, match="cannot be read"):
        names(root, name)
    with pytest.raises(DataError, match="cannot be read"), open_file(name):
        pass


def test_blocks_are_a_megabyte_each_and_all_bytes_once():
    data = os.urandom(2_500_000)
    parts = list(blocks(lambda start, stop: data[start:stop], 7, len(data) - 1))
    assert b"".join(parts) == data[7:-1]
    assert [len(part) for part in parts] == [1 << 20, 1 << 20, len(data) - 8 - (2 << 20)]
