"""A line of JSON is a document; a line that is none is named by file, line and byte."""

import functools
import json
import time

import pytest

from lingo.data import index as index_module
from lingo.data.files import DataError
from lingo.data.sources import jsonl
from lingo.data.sources.jsonl import JsonLines
from tests.lingo.data import documents
from tests.lingo.data.documents import texts

opened = functools.partial(documents.opened, JsonLines)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "data.jsonl"


def write(file, *lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_line_is_a_document(file):
    lines = ["one", "", "größer\n\t🙂", 'a "quoted" word', "last"]
    write(file, *({"id": i, "text": text} for i, text in enumerate(lines)))
    index = opened(file)
    assert texts(index) == [line for line in lines if line]
    assert index.units.tolist() == [len(line.encode()) for line in lines if line]
    assert index.read(1, 4, 6).decode() == "ß"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n  \n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_endings_empty_lines_and_byte_order_marks_do_not_matter(file, ending, mark):
    file.write_bytes(mark + ending.join(f'{{"text": "{t}"}}' for t in "abc").encode())
    assert texts(opened(file)) == ["a", "b", "c"]


def test_lines_longer_than_a_block_are_read_whole(file, monkeypatch):
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 7)
    lines = ["x" * n for n in (1, 20, 3, 40)]
    write(file, *({"text": text} for text in lines))
    assert texts(opened(file)) == lines


def test_a_field_may_stand_inside_another(file):
    write(file, {"meta": {"body": "inside"}, "text": "outside"})
    assert texts(opened(file, field="meta.body")) == ["inside"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "cut', "not JSON: Unterminated string"),
        ("[" * 100_000, "not JSON: "),
        ('{"text": "\xff"}', "not JSON: 'utf-8' codec"),
        ('["text"]', "the line is an array, not an object with a field 'text'"),
        ('{"txt": "a", "id": 1}', "the line has no field 'text'; fields: 'txt', 'id'"),
        ('{"text": 3}', "'text' is a number, not a string"),
        ('{"text": null}', "'text' is null, not a string"),
        ('{"text": "a", "meta": {"x": 1, "x": 1}}', "not JSON: an object has two fields 'x'"),
        ('{"text": "a\0b"}', "not JSON: Invalid control character"),
        ('{"n": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_byte(file, line, reason):
    file.write_bytes(b'{"text": "good"}\n\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match=f"data.jsonl, line 3, byte 18: {reason}"):
        opened(file)


def test_a_missing_inner_field_is_named_by_its_path(file):
    write(file, {"a": {"b": 1}})
    with pytest.raises(DataError, match="'a' has no field 'c'; fields: 'b'"):
        opened(file, field="a.c")
    with pytest.raises(DataError, match=r"'a\.b' is a number, not an object with a field 'c'"):
        opened(file, field="a.b.c")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"BZh91AY&SY", "is compressed by bzip2, but lingo unpacks only gzip"),
        (b"", "is empty: write it again"),
    ],
)
def test_a_compressed_or_empty_file_is_an_error_not_a_shorter_epoch(file, content, reason):
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.jsonl {reason}"):
        opened(file)


def test_half_a_surrogate_pair_is_some_text(file):
    file.write_bytes(b'{"text": "a\\ud800b\\u0000"}\n')
    assert opened(file).read(0, 0, 6) == b"a\xed\xa0\x80b\0"


def test_a_line_longer_than_what_is_kept_of_texts_is_decoded_once(file, monkeypatch):
    monkeypatch.setattr(index_module, "_RECENT_BYTES", 10)
    write(file, {"text": "x" * 1000}, {"text": "y" * 5})
    index, calls, text = opened(file), [], JsonLines.text
    monkeypatch.setattr(JsonLines, "text", lambda *a: calls.append(1) or text(*a))
    for document in (0, 1, 0, 1, 0):
        index.read(document, 2, 4)
    assert len(calls) == 2


def test_an_object_of_many_fields_is_checked_in_time(file):
    names = ", ".join(f'"{i}": 0' for i in range(100_000))
    file.write_text(f'{{{names}, "99999": 0}}\n')
    start = time.process_time()
    with pytest.raises(DataError, match="two fields '99999'"):
        opened(file)
    assert time.process_time() - start < 5


def test_objects_are_read_with_the_numbers_of_their_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n {"b": "\xc3\xa9"} \r\n{}')
    assert list(jsonl.read_objects(str(path))) == [
        (f"{path}, line 1", {"a": 1}),
        (f"{path}, line 3", {"b": "é"}),
        (f"{path}, line 4", {}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 2: not JSON"),
        (b"\xff", "line 2: not JSON"),
        (b"[" * 100_000, "line 2: not JSON"),
        (b'{"a": 1, "a": 2}', "line 2: not JSON: an object has two fields 'a'"),
        (b"3", "line 2: it is a number, not an object"),
        (b"null", "line 2: it is null, not an object"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + line)
    with pytest.raises(DataError, match=rf"a\.jsonl, {reason}"):
        list(jsonl.read_objects(str(path)))


def test_objects_of_what_is_no_file_are_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        list(jsonl.read_objects(str(tmp_path)))
