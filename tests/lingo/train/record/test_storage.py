"""Small files are there whole or not at all."""

from __future__ import annotations

import os

import pytest

from lingo.train.record.storage import PATH_PART, StorageError, write_text


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
