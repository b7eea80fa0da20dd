"""A cache saves time and never changes what an index says, whatever became of its files."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from lingo.data import index_cache
from lingo.data.index_cache import DOCUMENT_COLUMNS, Columns, Damage
from lingo.data.record_source import TextFiles
from tests.lingo.data import documents


@pytest.fixture
def data(tmp_path):
    return documents.write_documents(tmp_path / "data", ["one", "three\nfour"])


def opened(data):
    return documents.opened(TextFiles, data / "*")


def columns():
    documents = {name: np.array([i, i]) for i, name in enumerate(DOCUMENT_COLUMNS)}
    hashes, damage = np.full(2, 2**64 - 1, np.uint64), Damage(3, 5, ("a", "\udcff"))
    return Columns(documents, hashes, np.array([[1, 2]]), np.array([True]), "00" * 32, damage)


def test_what_is_written_is_read(cache):
    index_cache.save(cache / "k.index", columns())
    found, wanted = index_cache.load(cache / "k.index"), columns()
    assert found is not None
    assert list(found.documents) == list(DOCUMENT_COLUMNS)
    for name in DOCUMENT_COLUMNS:
        np.testing.assert_array_equal(found.documents[name], wanted.documents[name])
    np.testing.assert_array_equal(found.hashes, wanted.hashes)
    np.testing.assert_array_equal(found.cuts, wanted.cuts)
    np.testing.assert_array_equal(found.is_gzip, wanted.is_gzip)
    assert (found.digest, found.damage) == (wanted.digest, wanted.damage)


def test_every_flipped_byte_and_every_cut_is_found(cache):
    file = cache / "k.index"
    index_cache.save(file, columns())
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert index_cache.load(file) is None
        file.write_bytes(good[:place])
        assert index_cache.load(file) is None


def test_what_is_no_index_is_made_again(data, cache, measured):
    digest = opened(data).digest
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(b"garbage")
    assert opened(data).digest == digest
    assert file.read_bytes() == good
    assert len(measured) == 2


def test_what_waits_for_ever_when_opened_is_passed_over(data, cache, measured):
    opened(data)
    (file,) = cache.iterdir()
    file.unlink()
    os.mkfifo(file)
    opened(data)
    assert len(measured) == 2
    assert file.is_file()


def test_several_may_make_the_same_index_at_once(data, cache, measured):
    with ThreadPoolExecutor(8) as pool:
        digests = {found.digest for found in pool.map(opened, [data] * 32)}
    made = len(measured)
    assert digests == {opened(data).digest}
    assert (len(list(cache.iterdir())), len(measured)) == (1, made)


def test_a_cache_that_cannot_be_written_is_no_error(data, cache, measured):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    assert opened(data).digest == opened(data).digest
    assert len(measured) == 2


def test_a_failed_write_leaves_nothing_behind(data, cache, monkeypatch):
    full = mock.Mock(side_effect=OSError("No space left on device"))
    monkeypatch.setattr(index_cache.os, "replace", full)
    opened(data)
    assert list(cache.iterdir()) == []


def aged(file, *, days):
    then = time.time() - days * 86400
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * 100)
    os.utime(file, (then, then))
    return file


def test_what_was_not_used_for_long_is_cleared_when_something_is_kept(cache):
    old, new = aged(cache / "old.index", days=91), aged(cache / "new.index", days=89)
    dead, alive = aged(cache / ".writing-a", days=2), aged(cache / ".writing-b", days=0.1)
    index_cache.save(cache / "k.index", columns())
    assert [f.exists() for f in (old, new, dead, alive)] == [False, True, False, True]


def test_beyond_a_size_those_used_longest_ago_go_first(cache, monkeypatch):
    index_cache.save(cache / "k.index", columns())
    size = (cache / "k.index").stat().st_size
    monkeypatch.setattr(index_cache, "_KEPT_BYTES", size + 250)
    files = [aged(cache / f"{days}.index", days=days) for days in (1, 2, 3)]
    index_cache.save(cache / "k.index", columns())
    assert [file.exists() for file in files] == [True, True, False]
    monkeypatch.setattr(index_cache, "_KEPT_BYTES", 1)
    index_cache.save(cache / "k.index", columns())
    assert [file.name for file in cache.iterdir()] == ["k.index"]


def test_use_is_remembered(data, cache):
    opened(data)
    (file,) = cache.iterdir()
    os.utime(file, (0, 0))
    opened(data)
    assert file.stat().st_mtime > time.time() - 1000
