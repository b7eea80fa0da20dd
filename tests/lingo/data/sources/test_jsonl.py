"""A line of JSON is a document; a line that is none is named by file, line and byte."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import pytest

from lingo.config.params import ParamError
from lingo.data import index as index_module
from lingo.data.index import Index, open_index
from lingo.data.sources import jsonl
from lingo.data.sources.files import DataError
from lingo.data.sources.jsonl import JsonLines
from lingo.data.tokenizer import ByteTokenizer

BYTES = ByteTokenizer.params().build()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data.jsonl"


def opened(file: pathlib.Path, **fields: Any) -> Index:
    return open_index(JsonLines.params(pattern=str(file), **fields).build(), BYTES)


def texts(index: Index) -> list[str]:
    return [index.read(d, 0, int(n)).decode() for d, n in enumerate(index.size)]


def test_every_line_is_a_document(file: pathlib.Path) -> None:
    lines = ["one", "", "größer\n\t🙂", 'a "quoted" word', "last"]
    file.write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(lines)))
    index = opened(file)
    assert texts(index) == [line for line in lines if line]
    assert index.tokens.tolist() == [len(line.encode()) for line in lines if line]
    assert index.read(1, 4, 6).decode() == "ß"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n  \n"])
def test_line_endings_and_empty_lines_do_not_matter(file: pathlib.Path, ending: str) -> None:
    file.write_bytes("".join(f'{{"text": "{t}"}}{ending}' for t in "abc").encode())
    assert texts(opened(file)) == ["a", "b", "c"]


def test_lines_longer_than_a_block_are_read_whole(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 7)
    lines = ["x" * n for n in (1, 20, 3, 40)]
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in lines))
    assert texts(opened(file)) == lines


def test_a_field_may_stand_inside_another(file: pathlib.Path) -> None:
    file.write_text('{"meta": {"body": "inside"}, "text": "outside"}\n')
    assert texts(opened(file, field="meta.body")) == ["inside"]


def test_a_byte_order_mark_is_no_text(file: pathlib.Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    assert texts(opened(file)) == ["a"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "cut', "no JSON: Unterminated string"),
        ("[" * 100_000, "no JSON: "),
        ('{"text": "\xff"}', "no JSON: 'utf-8' codec"),
        ('["text"]', "the line is an array, no object with a field 'text'"),
        ('{"txt": "a", "id": 1}', "the line has no field 'text'; fields: 'txt', 'id'"),
        ('{"text": 3}', "'text' is a number, no string"),
        ('{"text": null}', "'text' is null, no string"),
        ('{"text": "a", "text": "b"}', "no JSON: an object has two fields 'text'"),
        ('{"text": "a", "meta": {"x": 1, "x": 1}}', "no JSON: an object has two fields 'x'"),
        ('{"text": "a\0b"}', "no JSON: Invalid control character"),
        ("\0\0\0", "no JSON: "),
        ('{"n": ' + "9" * 5000 + "}", "no JSON: Exceeds the limit"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_byte(
    file: pathlib.Path, line: str, reason: str
) -> None:
    file.write_bytes(b'{"text": "good"}\n\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError, match=f"data.jsonl, line 3, byte 18: {reason}"):
        opened(file)


def test_a_missing_inner_field_is_named_by_its_path(file: pathlib.Path) -> None:
    file.write_text('{"a": {"b": 1}}\n')
    with pytest.raises(DataError, match="'a' has no field 'c'; fields: 'b'"):
        opened(file, field="a.c")
    with pytest.raises(DataError, match=r"'a\.b' is a number, no object with a field 'c'"):
        opened(file, field="a.b.c")


def test_a_compressed_file_is_refused_with_what_to_do(file: pathlib.Path) -> None:
    file.write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(DataError, match="compressed by gzip: unpack it"):
        opened(file)


def test_a_file_without_a_byte_is_an_error_not_a_shorter_epoch(file: pathlib.Path) -> None:
    file.touch()
    with pytest.raises(DataError, match=r"data\.jsonl is empty: write it again"):
        opened(file)


def test_half_a_surrogate_pair_is_some_text(file: pathlib.Path) -> None:
    file.write_bytes(b'{"text": "a\\ud800b\\u0000"}\n')
    assert opened(file).read(0, 0, 6) == b"a\xed\xa0\x80b\0"


def test_a_line_longer_than_what_is_kept_of_texts_is_decoded_once(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_RECENT_BYTES", 10)
    lines = ["x" * 1000, "y" * 5]
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in lines))
    index, calls, text = opened(file), [], JsonLines.text
    monkeypatch.setattr(JsonLines, "text", lambda *a: calls.append(1) or text(*a))
    for document in (0, 1, 0, 1, 0):
        index.read(document, 2, 4)
    assert len(calls) == 2


def test_wrong_fields_are_refused_at_build() -> None:
    with pytest.raises(ParamError, match=r"field='a\.' has an empty name"):
        JsonLines.params(pattern="x", field="a.").build()
    with pytest.raises(ParamError, match="pattern is empty"):
        JsonLines.params(pattern="").build()


def test_an_object_of_many_fields_is_checked_in_time(file: pathlib.Path) -> None:
    names = ", ".join(f'"{i}": 0' for i in range(100_000))
    file.write_text(f'{{{names}, "99999": 0}}\n')
    start = time.process_time()
    with pytest.raises(DataError, match="two fields '99999'"):
        opened(file)
    assert time.process_time() - start < 5
