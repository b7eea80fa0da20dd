"""Sources list the same files in the same order everywhere, and split them without overlap."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError, File
from lingo.data.record_source import InstalledSource, Splittable, TextFiles, split_hash
from lingo.datasets.digits import Digits


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


HASHES = np.array([split_hash(b"%d" % i) for i in range(1000)], np.uint64)


def inside(split, fraction=0.2):
    return Splittable.params(split=split, heldout_fraction=fraction).build().in_split(HASHES)


def test_train_and_heldout_share_nothing_and_together_are_all():
    assert (inside("train") ^ inside("heldout")).all()
    assert inside("all").all()
    assert 150 < inside("heldout").sum() < 250


def test_what_a_smaller_fraction_holds_out_a_larger_one_does_too():
    assert (inside("heldout", 0.1) <= inside("heldout", 0.3)).all()


def test_a_hash_is_on_one_side_of_the_fraction_exactly():
    half = Splittable.params(split="heldout", heldout_fraction=0.5).build()
    edge = np.array([2**63 - 1, 2**63], np.uint64)
    np.testing.assert_array_equal(half.in_split(edge), [True, False])


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_fraction_that_leaves_a_part_empty_is_refused(fraction):
    with pytest.raises(ParamError, match="is not between 0 and 1"):
        Splittable.params(heldout_fraction=fraction).build()


def test_files_are_split_by_their_names_as_ever():
    source = TextFiles.params(pattern="/x", split="heldout", heldout_fraction=0.25).build()
    names = [f"folder/{i}.txt" for i in range(200)]
    files = [File(name, f"/x/{name}", size=1, version="0") for name in names]
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    expected = [digest[0] < "4" for digest in digests]  # a quarter of all first digits
    assert source.files_in_split(files).tolist() == expected


def test_the_digits_that_are_held_out_are_those_of_published_runs():
    heldout = Digits.params(split="heldout").build().fingerprint()
    assert heldout["images"] == 334
    assert heldout["source"] == "Digits(split='heldout')"
    assert heldout["digest"].startswith("452fa1a5853f5368")
