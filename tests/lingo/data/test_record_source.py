"""Sources list the same files in the same order everywhere, and split them without overlap."""

import os
import subprocess
import sys

import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.record_source import InstalledSource, TextFiles


def texts(pattern, **fields):
    return TextFiles.params(pattern=str(pattern), **fields).build()


def names(source):
    return [file.name for file in source.files()]


@pytest.fixture
def books(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/d.md"):
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    return tmp_path / "books"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{}/books/**/*.txt", ["[1] x.txt", "a.txt", "b.txt", "sub/c.txt"]),
        ("{}/*/?.txt", ["books/a.txt", "books/b.txt"]),  # named from the first wildcard on
        ("{}/books/*", ["[1] x.txt", "a.txt", "b.txt"]),  # without directories
        ("{}/books/a.txt", ["a.txt"]),
        ("{}/books/[1] x.txt", ["[1] x.txt"]),
        ("~/books/?.txt", ["a.txt", "b.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
    ],
)
def test_a_path_or_a_glob_gives_files_sorted_by_name(books, monkeypatch, pattern, expected):
    (books / "[1] x.txt").write_text("x")
    monkeypatch.setenv("HOME", str(books.parent))
    monkeypatch.chdir(books)
    assert names(texts(pattern.format(books.parent))) == expected


def test_train_and_heldout_share_no_file(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("x")
    everything, train, heldout = (
        names(texts(tmp_path / "*.txt", split=split, heldout_fraction=0.5))
        for split in ("all", "train", "heldout")
    )
    assert sorted(train + heldout) == everything
    assert len(train) * len(heldout) > 0
    by_document = texts(tmp_path / "*.txt", split="heldout", split_by="document")
    assert names(by_document) == everything  # a file has documents of both


def test_nothing_matching_names_the_pattern_and_what_is_there(books):
    with pytest.raises(DataError, match=r"\*\.rst.*no file matches.*holds a\.txt, b\.txt, sub"):
        texts(books / "*.rst").files()
    with pytest.raises(DataError, match=r"no file matches\. There is no directory .*nowhere"):
        texts(books / "nowhere/*.txt").files()
    with pytest.raises(DataError, match=r"books is a directory: ask for .*books/\*\*/\*"):
        texts(books).files()
    with pytest.raises(DataError, match=r"is a directory: ask for"):
        texts(f"{books}/").files()


def test_a_split_without_files_is_refused_with_the_reason(books):
    with pytest.raises(DataError, match="none of the 1 files that match is in this split"):
        texts(books / "a.txt", split="heldout", heldout_fraction=1e-9).files()


def test_a_broken_link_is_an_error_not_a_shorter_epoch(books):
    (books / "e.txt").symlink_to(books / "gone")
    with pytest.raises(DataError, match=r"e\.txt cannot be read: No such file"):
        texts(books / "*.txt").files()


def test_a_file_reads_a_range_of_bytes(books):
    (file, *_) = texts(books / "*.txt").files()
    assert file.read(5, 9) == b"is a"
    with pytest.raises(DataError, match=r"a\.txt: wanted bytes 10 to 99, got 3"):
        file.read(10, 99)


def test_a_file_that_changed_or_went_away_is_an_error(books):
    first, second = texts(books / "*.txt").files()
    (books / "a.txt").write_text("longer than before")
    with pytest.raises(DataError, match=r"a\.txt has changed since"):
        first.read(0, 1)
    os.utime(books / "b.txt", ns=(0, 0))
    with pytest.raises(DataError, match=r"b\.txt has changed since"):
        second.digest()
    (books / "b.txt").unlink()
    with pytest.raises(DataError, match=r"b\.txt cannot be read: No such file"):
        second.read(0, 1)


def test_an_installed_package_is_found_without_importing_it():
    code = (
        "import sys; from lingo.data.record_source import InstalledSource as S;"
        "print(len(S.params(package='keras').build().files()) > 100, 'keras' in sys.modules,"
        " len(S.params().build().files()) > 1000, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True", "False"]


def test_a_package_that_is_not_installed_is_an_error_when_read_not_when_built():
    for package in ("no_such_package", "this"):  # the second is a single file
        source = InstalledSource.params(package=package).build()
        with pytest.raises(DataError, match=f"no package '{package}' is installed"):
            source.files()


def test_a_source_describes_itself_by_the_fields_that_are_set(books):
    assert InstalledSource.params().build().describe() == "InstalledSource()"
    described = texts("/x", split="train", heldout_fraction=0.5).describe()
    assert described == "TextFiles(split='train', heldout_fraction=0.5, pattern='/x')"


def test_wrong_fields_are_refused_at_build():
    with pytest.raises(ParamError, match=r"package='a\.b' is not the name of a top-level package"):
        InstalledSource.params(package="a.b").build()
    with pytest.raises(ParamError, match="pattern is empty"):
        TextFiles.params(pattern="").build()
