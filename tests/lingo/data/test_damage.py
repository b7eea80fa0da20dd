"""Damaged records are left out where that is allowed, counted and listed; else they are errors."""

import pytest

from lingo.config.params import ParamError
from lingo.data.document_input import TextInput
from lingo.data.files import DataError
from lingo.data.record_source import TextFiles
from lingo.data.sources.jsonl import JsonLines
from lingo.data.sources.tfrecord import TfRecords, frame
from tests.lingo.data import documents
from tests.lingo.data.documents import example, texts


@pytest.fixture
def folder(tmp_path):
    """Two files of ten records of one size each."""
    (tmp_path / "data").mkdir()
    for name in "ab":
        payloads = [example(f"text {name}{i}") for i in range(10)]
        (tmp_path / "data" / name).write_bytes(b"".join(map(frame, payloads)))
    return tmp_path / "data"


SIZE = len(frame(example("text a0")))


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def opened(folder, **fields):
    return documents.opened(TfRecords, folder / "*", **fields)


def test_one_flipped_bit_in_a_payload_costs_one_record(folder):
    whole = texts(opened(folder))
    flip(folder / "a", 3 * SIZE + 20)
    with pytest.raises(
        DataError, match=rf"data/a, record 4, byte {3 * SIZE}: .*checksum.*max_damaged=N"
    ):
        opened(folder)
    index = opened(folder, max_damaged=1)
    assert texts(index) == [text for text in whole if text != "text a3"]
    assert index.damage[:2] == (1, SIZE)
    assert f"data/a, record 4, byte {3 * SIZE}: " in index.damage.examples[0]


def test_the_rest_of_a_file_counts_as_the_records_it_would_hold(folder):
    flip(folder / "a", 3 * SIZE + 2)
    with pytest.raises(DataError, match="more than max_damaged=6: 7 damaged records"):
        opened(folder, max_damaged=6)
    index = opened(folder, max_damaged=7)
    assert index.damage[:2] == (7, 7 * SIZE)
    assert texts(index) == [f"text a{i}" for i in range(3)] + [f"text b{i}" for i in range(10)]
    assert f"The last {7 * SIZE} bytes of the file, about 7 records, are" in str(index.damage)


@pytest.mark.parametrize("left", [1, 11, 15, 16, SIZE - 1])
def test_a_file_cut_short_costs_its_last_record(folder, left):
    data = (folder / "b").read_bytes()
    (folder / "b").write_bytes(data[: 9 * SIZE + left])
    with pytest.raises(DataError, match=rf"data/b, record 10, byte {9 * SIZE}: .*(cut|ends)"):
        opened(folder)
    index = opened(folder, max_damaged=1)
    assert index.damage[:2] == (1, left)
    assert len(index.units) == 19


@pytest.mark.parametrize("content", [b"no records", b"", b"\x1f\x8b\x08\0" + bytes(40), None])
def test_a_file_without_any_record_is_always_an_error(folder, content):
    (folder / "c").symlink_to("b")
    (folder / "b").unlink() if content is None else (folder / "b").write_bytes(content)
    with pytest.raises(DataError, match=r"data/[bc]"):
        opened(folder, max_damaged=1000)


def test_a_file_is_not_left_out_for_its_first_header(folder):
    flip(folder / "b", 3)
    with pytest.raises(DataError, match=r"data/b, record 1, byte 0: .*leaves out records, not fi"):
        opened(folder, max_damaged=1000)


def test_too_many_are_all_counted_and_the_first_listed(folder):
    for i in range(10):
        flip(folder / "b", i * SIZE + 20)
    with pytest.raises(DataError, match="max_damaged=9: 10 damaged records of") as caught:
        opened(folder, max_damaged=9)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[0].endswith(f"10 damaged records of {10 * SIZE} bytes, the first:")
    assert lines[1].startswith(f"  {folder}/b, record 1, byte 0: ")
    assert lines[5].startswith(f"  {folder}/b, record 5, byte {4 * SIZE}: ")


def test_another_limit_needs_no_other_index(folder, measured):
    flip(folder / "a", 20)
    flip(folder / "a", SIZE + 20)
    assert opened(folder, max_damaged=2).damage.records == 2
    for limit in (0, 1):
        with pytest.raises(DataError, match=f"more than max_damaged={limit}: 2 damaged records"):
            opened(folder, max_damaged=limit)
    assert len(measured) == 1


def test_damage_is_part_of_what_identifies_the_data_and_is_told(folder):
    source = TfRecords.params(pattern=f"{folder}/*", max_damaged=3)
    params = TextInput.params(batch_size=1, length=8, source=source)
    assert params.build().fingerprint()["damaged"] == 0
    assert params.build().remarks() == []
    flip(folder / "a", 20)
    damaged = params.build()
    assert damaged.fingerprint()["damaged"] == 1
    (remark,) = damaged.remarks()
    assert remark.startswith(f"left out 1 damaged record of {SIZE} bytes:\n  {folder}/a, record 1,")


def test_a_limit_below_zero_is_refused_and_texts_have_none():
    with pytest.raises(ParamError, match="max_damaged=-1 is negative"):
        JsonLines.params(pattern="x", max_damaged=-1).build()
    with pytest.raises(ParamError, match="no field 'max_damaged'"):
        TextFiles.params(pattern="x", max_damaged=1)
