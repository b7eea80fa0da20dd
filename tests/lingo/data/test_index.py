"""An index says where documents are; its cache saves time and never changes what it says."""

from __future__ import annotations

import os
import shutil
from typing import ClassVar

import numpy as np
import pytest

from lingo.data import index as index_module
from lingo.data.files import DataError, File, Read
from lingo.data.index import Index, Recent, open_index
from lingo.data.record_source import TextFiles
from tests.lingo.data import documents
from tests.lingo.data.documents import BYTES, texts


class Lines(TextFiles):
    """Every line is a document."""

    def spans(self, file: File, read: Read) -> list[tuple[int, int]]:
        lines = read(0, file.size).splitlines(keepends=True)
        starts = np.cumsum([0, *map(len, lines)])
        return [(int(s), len(line)) for s, line in zip(starts, lines, strict=False)]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for name, text in (("a", "one"), ("b", ""), ("c", "three\nfour")):
        (tmp_path / "data" / name).write_text(text)
    return tmp_path / "data"


def opened(data, kind=TextFiles, **fields):
    return documents.opened(kind, data / "*", **fields)


def same(a, b):
    kept = [name for name in Index._fields if name not in ("source", "tokenizer", "recent")]
    return all(np.all(getattr(a, name) == getattr(b, name)) for name in kept)


def test_every_document_that_is_not_empty_is_listed(data):
    index = opened(data)
    assert [index.files[i].name for i in index.file_id] == ["a", "c"]
    np.testing.assert_array_equal(index.size, [3, 10])
    np.testing.assert_array_equal(index.units, [3, 10])
    assert index.read(1, 2, 5) == b"ree"


def test_a_source_can_keep_several_documents_in_a_file(data):
    assert texts(opened(data, Lines)) == ["one", "three\n", "four"]


def test_the_second_time_comes_from_the_cache_and_is_equal(data, measured):
    assert same(opened(data), opened(data))
    assert len(measured) == 1


def test_what_an_index_depends_on_is_in_its_key(data, measured):
    opened(data)
    opened(data, Lines)
    os.utime(data / "a", ns=(5, 5))
    opened(data)
    (data / "d").write_text("new")
    assert len(opened(data).units) == 3
    assert len(measured) == 4


def test_the_digest_is_of_names_and_contents_not_of_places_and_times(data, tmp_path):
    digest = opened(data).digest
    copy = shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    assert opened(copy).digest == digest
    (copy / "a").write_text("One")
    assert opened(copy).digest != digest
    (copy / "a").write_text("one")
    (copy / "a").rename(copy / "aa")
    assert opened(copy).digest != digest


@pytest.mark.parametrize(
    ("kind", "pattern", "expected"),
    [
        (TextFiles, "*", [(3, 13), (3, 13), (13, 13)]),
        (Lines, "c", [(6, 10), (10, 10)]),  # also within a file
    ],
)
def test_progress_runs_from_the_first_file_to_all_bytes(data, monkeypatch, kind, pattern, expected):
    monkeypatch.setattr(index_module, "_BLOCK_BYTES", 5)
    seen = []
    source = kind.params(pattern=f"{data}/{pattern}").build()
    open_index(source, BYTES, progress=lambda done, total: seen.append((done, total)))
    assert seen == expected


class Sentences(Lines):
    """Every line is a document, and says the same louder."""

    decodes: ClassVar[bool] = True
    unit: ClassVar[str] = "line"

    def text(self, data: bytes, where: str) -> bytes:
        if b"?" in data:
            raise DataError(f"{where}: a question.")
        return data.strip().upper()


def test_a_decoded_document_is_measured_and_read_as_its_text(data):
    (data / "d").write_text("  \n padded \n")
    index = opened(data, Sentences)
    assert texts(index) == ["ONE", "THREE", "FOUR", "PADDED"]
    assert index.size.tolist() == index.units.tolist() == [3, 5, 4, 6]
    assert index.extent.tolist() == [3, 6, 4, 9]
    assert index.read(1, 2, 4) == b"RE"
    np.testing.assert_array_equal(index.encode(1, 1, 3), BYTES.encode("HR"))


def test_a_document_that_cannot_be_decoded_is_named(data):
    (data / "d").write_text("fine\nwhat?\n")
    with pytest.raises(DataError, match="d, line 2, byte 5: a question"):
        opened(data, Sentences)


@pytest.fixture
def many(data):
    """One file of 300 lines, each twice, and one without text."""
    (data / "a").write_text("".join(f"line {i % 300}\n" for i in range(600)))
    (data / "c").unlink()
    return data


def lines(data, **fields):
    return texts(opened(data, Lines, **fields))


def test_splits_of_documents_share_none_and_together_are_all(many, measured):
    by = {"split_by": "document", "heldout_fraction": 0.2}
    train, heldout = lines(many, split="train", **by), lines(many, split="heldout", **by)
    assert not set(train) & set(heldout)
    assert sorted(train + heldout) == sorted(lines(many, split_by="document"))
    assert 70 < len(heldout) < 170
    assert len(measured) == 1  # one reading serves them all


def test_a_document_stays_in_its_split_wherever_it_stands(many):
    by = {"split_by": "document", "heldout_fraction": 0.2, "split": "heldout"}
    before = set(lines(many, **by))
    (many / "b").write_text("".join(f"line {i}\n" for i in reversed(range(300))))
    (many / "a").unlink()
    assert set(lines(many, **by)) == before


def test_a_text_that_has_been_before_can_be_left_out(many):
    assert lines(many, unique=True) == [f"line {i}\n" for i in range(300)]
    assert len(lines(many)) == 600


def test_a_split_without_documents_is_an_error(data):
    with pytest.raises(DataError, match=r"split='heldout'.*there is no text in the 3 files"):
        opened(data, split="heldout", split_by="document", heldout_fraction=1e-9)


def test_a_decoded_document_is_decoded_once_while_there_is_room(data, monkeypatch):
    index, calls = opened(data, Sentences), []
    text = Sentences.text
    monkeypatch.setattr(Sentences, "text", lambda *a: calls.append(1) or text(*a))
    for document in (0, 1, 0, 1, 2):
        index.read(document, 0, 1)
    assert len(calls) == 3


def test_whole_documents_are_read_at_once_each_file_opened_once(data, monkeypatch):
    (data / "d").write_text("five\nsix\n")
    index, other, opens = opened(data, Sentences), opened(data, Sentences), []
    documents = np.array([4, 0, 2, 1, 4])
    wanted = [other.read(d, 0, int(other.size[d])) for d in documents.tolist()]
    open = File.open
    monkeypatch.setattr(File, "open", lambda file: opens.append(file.name) or open(file))
    assert index.texts(documents) == wanted
    assert opens == ["a", "c", "d"]
    assert index.texts(documents) == wanted
    assert opens == ["a", "c", "d"], "documents for which there is room are kept"
    full = index._replace(recent=Recent(max_bytes=1))
    assert full.texts(documents) == full.texts(documents) == wanted
    assert len(opens) == 9


def test_texts_of_longest_ago_make_room():
    recent = Recent(max_bytes=6)
    for document, text in ((0, b"aa"), (1, b"bb"), (2, b"cc")):
        recent.put(document, text)
    recent.get(0)
    recent.put(3, b"ddd")
    assert [recent.get(i) for i in range(4)] == [b"aa", None, None, b"ddd"]
    recent.put(4, b"longer than all")
    assert [recent.get(i) for i in range(5)] == [None] * 5
    recent.put(0, b"aa")
    assert recent.get(0) == b"aa"


class Cut(Lines):
    """As much of every line as `LENGTH` says."""

    decodes: ClassVar[bool] = True
    LENGTH: ClassVar[int] = 3

    def text(self, data: bytes, where: str) -> bytes:
        return data[: self.LENGTH]


def test_a_text_of_another_size_than_was_indexed_is_an_error_and_is_indexed_anew(
    data, measured, monkeypatch
):
    index = opened(data, Cut)
    monkeypatch.setattr(Cut, "LENGTH", 2)
    with pytest.raises(DataError, match=r"document 1, byte 0: its text has 2 bytes, but had 3"):
        index.read(0, 0, 3)
    with pytest.raises(DataError, match=r"document 1, byte 0: its text has 2 bytes, but had 3"):
        index.texts(np.array([0]))
    assert opened(data, Cut).read(0, 0, 2) == b"on"
    assert len(measured) == 2


def test_another_python_and_another_source_code_make_another_index(
    data, measured, monkeypatch, tmp_path
):
    opened(data, Lines)
    with monkeypatch.context() as patch:
        patch.setattr(index_module.roots, "source_file", lambda cls: data / "a")
        opened(data, Lines)
    with monkeypatch.context() as patch:
        patch.setattr(index_module.sys, "version_info", (3, 99))
        opened(data)
    opened(data)
    assert len(measured) == 4


def test_a_text_that_is_unique_is_in_one_split_also_where_files_are_split(tmp_path):
    for i in range(40):
        (tmp_path / f"{i}.txt").write_text(f"text {i % 20}")

    fields = {"heldout_fraction": 0.5, "unique": True}
    train, heldout = (
        texts(documents.opened(TextFiles, tmp_path / "*.txt", split=split, **fields))
        for split in ("train", "heldout")
    )
    assert len(train) > 3 < len(heldout)
    assert sorted(train + heldout) == sorted({f"text {i}" for i in range(20)})
