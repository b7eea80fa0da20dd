"""An index says where documents are; its cache saves time and never changes what it says."""

from __future__ import annotations

import os
import pathlib
import shutil

import numpy as np
import pytest

from lingo.data import index as index_module
from lingo.data.index import Index, open_index
from lingo.data.source import DataError, File, TextFiles
from lingo.data.tokenizer import ByteTokenizer

BYTES = ByteTokenizer.params().build()


class Lines(TextFiles):
    """Every line is a document."""

    def spans(self, file: File) -> list[tuple[int, int]]:
        lines = file.read(0, file.size).splitlines(keepends=True)
        starts = np.cumsum([0, *map(len, lines)])
        return [(int(s), len(line)) for s, line in zip(starts, lines, strict=False)]


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lingo" / "index"


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "data").mkdir()
    for name, text in (("a", "one"), ("b", ""), ("c", "three\nfour")):
        (tmp_path / "data" / name).write_text(text)
    return tmp_path / "data"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever an index is made by reading the data."""
    calls, measure = [], index_module._measure
    monkeypatch.setattr(index_module, "_measure", lambda *a: calls.append(1) or measure(*a))
    return calls


def opened(data: pathlib.Path, kind: type[TextFiles] = TextFiles) -> Index:
    return open_index(kind.params(pattern=f"{data}/*").build(), BYTES)


def same(a: Index, b: Index) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_document_that_is_not_empty_is_listed(data: pathlib.Path) -> None:
    index = opened(data)
    assert [index.files[i].name for i in index.file_id] == ["a", "c"]
    np.testing.assert_array_equal(index.size, [3, 10])
    np.testing.assert_array_equal(index.tokens, [3, 10])
    assert index.read(1, 2, 5) == b"ree"


def test_a_source_can_keep_several_documents_in_a_file(data: pathlib.Path) -> None:
    index = opened(data, Lines)
    whole = [index.read(i, 0, int(n)) for i, n in enumerate(index.size)]
    assert whole == [b"one", b"three\n", b"four"]


def test_the_second_time_comes_from_the_cache_and_is_equal(
    data: pathlib.Path, measured: list[int]
) -> None:
    assert same(opened(data), opened(data))
    assert len(measured) == 1


def test_what_an_index_depends_on_is_in_its_key(data: pathlib.Path, measured: list[int]) -> None:
    opened(data)
    opened(data, Lines)
    os.utime(data / "a", ns=(5, 5))
    opened(data)
    (data / "d").write_text("new")
    assert len(opened(data).tokens) == 3
    assert len(measured) == 4


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_a_damaged_cache_is_made_again(
    damage: str, data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    before = opened(data)
    (file,) = cache.iterdir()
    good = file.read_bytes()
    bad = {
        "truncate": good[:-7],
        "flip": good[:50] + bytes([good[50] ^ 1]) + good[51:],
        "empty": b"",
        "garbage": b"x" * 99,
    }
    file.write_bytes(bad[damage])
    assert same(opened(data), before)
    assert len(measured) == 2
    assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(
    data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    assert same(opened(data), opened(data))
    assert len(measured) == 2


def test_a_failed_write_leaves_nothing_behind(
    data: pathlib.Path, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(index_module.os, "replace", full)
    opened(data)
    assert list(cache.iterdir()) == []


def test_the_digest_is_of_names_and_contents_not_of_places_and_times(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    digest = opened(data).digest
    copy = shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    assert opened(copy).digest == digest
    (copy / "a").write_text("One")
    assert opened(copy).digest != digest
    (copy / "a").write_text("one")
    (copy / "a").rename(copy / "aa")
    assert opened(copy).digest != digest


def test_progress_runs_from_the_first_file_to_all_bytes(data: pathlib.Path) -> None:
    seen: list[tuple[int, int]] = []
    source = TextFiles.params(pattern=f"{data}/*").build()
    open_index(source, BYTES, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 13), (3, 13), (13, 13)]


def test_files_that_are_all_empty_are_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a").touch()
    with pytest.raises(DataError, match="all of the 1 files are empty"):
        opened(tmp_path / "empty")
