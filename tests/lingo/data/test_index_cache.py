"""A cache saves time and never changes what an index says, whatever became of its files."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lingo.data import index as index_module
from lingo.data import index_cache
from lingo.data.damage import Damage
from lingo.data.index import Index, open_index
from lingo.data.index_cache import DOCUMENT_COLUMNS, Columns
from lingo.data.source import TextFiles
from lingo.data.tokenizer import ByteTokenizer

BYTES = ByteTokenizer.params().build()
SIZES = np.array([9, 9])


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lingo" / "index"


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "data").mkdir()
    for name, text in (("a", "one"), ("c", "three\nfour")):
        (tmp_path / "data" / name).write_text(text)
    return tmp_path / "data"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever an index is made by reading the data."""
    calls, measure = [], index_module._measure
    monkeypatch.setattr(index_module, "_measure", lambda *a: calls.append(1) or measure(*a))
    return calls


def opened(data: pathlib.Path) -> Index:
    return open_index(TextFiles.params(pattern=f"{data}/*").build(), BYTES)


def columns(num_documents: int = 2) -> Columns:
    documents = {name: np.ones(num_documents, np.int64) for name in DOCUMENT_COLUMNS}
    documents["first_cut"] = np.zeros(num_documents, np.int64)
    hashes = np.full(num_documents, 2**64 - 1, np.uint64)
    damage = Damage(3, 5, ("a", "\udcff"))
    return Columns(documents, hashes, np.array([[1, 2]]), b"\x00" * 32, damage)


def forged(path: pathlib.Path, content: bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(content).digest() + content)
    return path


def test_what_is_written_is_read(cache: pathlib.Path) -> None:
    index_cache.save(cache / "k.index", columns())
    found, wanted = index_cache.load(cache / "k.index", sizes=SIZES), columns()
    assert found is not None
    for name in DOCUMENT_COLUMNS:
        np.testing.assert_array_equal(found.documents[name], wanted.documents[name])
    np.testing.assert_array_equal(found.hashes, wanted.hashes)
    np.testing.assert_array_equal(found.cuts, wanted.cuts)
    assert (found.digest, found.damage) == (wanted.digest, wanted.damage)


def test_every_flipped_byte_and_every_cut_is_found(cache: pathlib.Path) -> None:
    file = cache / "k.index"
    index_cache.save(file, columns())
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert index_cache.load(file, sizes=SIZES) is None
        file.write_bytes(good[:place])
        assert index_cache.load(file, sizes=SIZES) is None


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY" * 20])
def test_what_is_no_index_is_made_again(
    content: bytes, data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    digest = opened(data).digest
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(content)
    assert opened(data).digest == digest
    assert file.read_bytes() == good
    assert len(measured) == 2


def test_what_waits_for_ever_when_opened_is_passed_over(
    data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    opened(data)
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file)
    opened(data)
    assert len(measured) == 2
    assert file.is_file()


@pytest.mark.parametrize(
    "about",
    [
        "[" * 100_000,
        "3",
        '{"documents": 1}',
        '{"documents": 1e99, "cuts": 0, "digest": "", "damage": [0, 0, []]}',
        '{"documents": -2, "cuts": 9, "digest": "", "damage": [0, 0, []]}',
        f'{{"documents": {2**62}, "cuts": {2**62}, "digest": "", "damage": [0, 0, []]}}',
        '{"documents": 0, "cuts": 0, "digest": "no hex", "damage": [0, 0, []]}',
        '{"documents": 0, "cuts": 0, "digest": "", "damage": {}}',
    ],
)
def test_a_forged_description_costs_neither_memory_nor_a_crash(
    about: str, cache: pathlib.Path
) -> None:
    file = forged(cache / "k.index", about.encode() + b"\n")
    assert index_cache.load(file, sizes=SIZES) is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("file_id", 2),
        ("file_id", -1),
        ("start", -1),
        ("start", 10),
        ("extent", 2**62),
        ("extent", -1),
        ("tokens", 0),
        ("first_cut", 2),
        ("num_cuts", 2**62),
    ],
)
def test_what_points_outside_is_not_used(column: str, value: int, cache: pathlib.Path) -> None:
    bad = columns()
    bad.documents[column][1] = value
    index_cache.save(cache / "k.index", bad)
    assert index_cache.load(cache / "k.index", sizes=SIZES) is None


def test_several_may_make_the_same_index_at_once(
    data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    with ThreadPoolExecutor(8) as pool:
        digests = {found.digest for found in pool.map(opened, [data] * 32)}
    made = len(measured)
    assert digests == {opened(data).digest}
    assert (len(list(cache.iterdir())), len(measured)) == (1, made)


def test_a_cache_that_cannot_be_written_is_no_error(
    data: pathlib.Path, cache: pathlib.Path, measured: list[int]
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    assert opened(data).digest == opened(data).digest
    assert len(measured) == 2


def test_a_failed_write_leaves_nothing_behind(
    data: pathlib.Path, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(index_cache.os, "replace", full)
    opened(data)
    assert list(cache.iterdir()) == []


def aged(file: pathlib.Path, *, days: float) -> pathlib.Path:
    then = time.time() - days * 86400
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * 100)
    os.utime(file, (then, then))
    return file


def test_what_was_not_used_for_long_is_cleared_when_something_is_kept(cache: pathlib.Path) -> None:
    old, new = aged(cache / "old.index", days=91), aged(cache / "new.index", days=89)
    dead, alive = aged(cache / ".writing-a", days=2), aged(cache / ".writing-b", days=0.1)
    index_cache.save(cache / "k.index", columns())
    assert [f.exists() for f in (old, new, dead, alive)] == [False, True, False, True]


def test_beyond_a_size_those_used_longest_ago_go_first(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_cache.save(cache / "k.index", columns())
    size = (cache / "k.index").stat().st_size
    monkeypatch.setattr(index_cache, "_KEPT_BYTES", size + 250)
    files = [aged(cache / f"{days}.index", days=days) for days in (1, 2, 3)]
    index_cache.save(cache / "k.index", columns())
    assert [file.exists() for file in files] == [True, True, False]
    monkeypatch.setattr(index_cache, "_KEPT_BYTES", 1)
    index_cache.save(cache / "k.index", columns())
    assert [file.name for file in cache.iterdir()] == ["k.index"]


def test_use_is_remembered(data: pathlib.Path, cache: pathlib.Path) -> None:
    opened(data)
    (file,) = cache.iterdir()
    os.utime(file, (0, 0))
    opened(data)
    assert file.stat().st_mtime > time.time() - 1000


def test_a_description_is_one_line_of_json(cache: pathlib.Path) -> None:
    index_cache.save(cache / "k.index", columns())
    line = (cache / "k.index").read_bytes()[32:].split(b"\n")[0]
    assert json.loads(line)["documents"] == 2
