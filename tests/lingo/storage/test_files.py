"""Small files are there whole or not at all."""

from __future__ import annotations

import os
import pathlib
import re
import resource

import pytest

from lingo.storage.files import (
    PATH_PART,
    StorageError,
    append,
    storage_error,
    write_text,
)


def test_the_new_text_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "note.txt"
    write_text(path, "old\r\n")
    write_text(path, "new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert os.listdir(tmp_path) == ["note.txt"]


def test_a_failed_write_names_path_and_free_bytes_and_leaves_nothing(tmp_path):
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*note\.txt: .* bytes free") as caught:
        write_text(tmp_path / "note.txt", "text")
    assert caught.value.exit_code == 10
    assert os.listdir(tmp_path) == ["note.txt"]


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        write_text(tmp_path / "a" / "b" / "note.txt", "text")


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".hidden", "-x", "a" * 65, "a\n"])
def test_names_that_could_leave_a_directory_are_no_path_parts(name):
    assert not PATH_PART.fullmatch(name)


def test_what_is_appended_begins_a_new_file_in_its_own_way(tmp_path):
    path = tmp_path / "rows"
    for data in (b"a", b"b"):
        append(path, data, start=b"#")
    assert path.read_bytes() == b"#ab"


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "rows"
    append(path, b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))  # room for two bytes of five
    try:
        with pytest.raises(StorageError, match="rows: No space left"):
            append(path, b"after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"before"


def test_the_bytes_needed_are_told():
    error = storage_error(pathlib.Path("/no/such/place"), OSError(28, "full"), needs_bytes=12345)
    assert re.fullmatch(
        r"cannot write /no/such/place: full \([\d,]+ bytes free, 12,345 bytes needed\)\.",
        str(error),
    )
