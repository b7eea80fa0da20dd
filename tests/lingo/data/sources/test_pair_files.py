"""Your own pairs: two fields or two columns of a line; a line without them is named."""

import json

import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.index import open_index
from lingo.data.pairs.pair import PairTokenizer
from lingo.data.sources.pair_files import JsonlPairs, TsvPairs
from tests.lingo.data import documents

PAIRS = PairTokenizer.params().build()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "pairs"


def opened(kind, file, **fields):
    return open_index(kind.params(pattern=str(file), **fields).build(), PAIRS)


def texts(index):
    return [text.split("\x1e") for text in documents.texts(index)]


def test_two_fields_of_a_line_are_a_pair(file):
    lines = [{"source": "größer\t", "target": "ja\n"}, {"source": "a", "target": "", "more": 1}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert texts(opened(JsonlPairs, file)) == [["größer\t", "ja\n"]]
    file.write_text(json.dumps({"q": {"text": "how"}, "a": "so"}))
    found = opened(JsonlPairs, file, source_field="q.text", target_field="a")
    assert texts(found) == [["how", "so"]]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
def test_two_columns_of_a_line_are_a_pair(file, ending):
    file.write_bytes("".join(f"{i}\ta {i}\t'ü'{ending}" for i in range(2)).encode())
    found = opened(TsvPairs, file, source_column=2, target_column=1)
    assert texts(found) == [["'ü'", "a 0"], ["'ü'", "a 1"]]


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        (JsonlPairs, b'{"source": "a"}', "the line has no field 'target'; fields: 'source'"),
        (JsonlPairs, b'{"source": 3, "target": "b"}', "'source' is a number, not a string"),
        (TsvPairs, b"one", "it has 1 columns, no column 1"),
        (TsvPairs, b"a\t\xff", "not UTF-8: invalid start byte"),
        (TsvPairs, b"a\x1e\tb", r"it has U\+001E"),
    ],
)
def test_a_line_without_a_pair_is_an_error_that_may_be_allowed(file, kind, line, said):
    good = b'{"source": "x", "target": "y"}' if kind is JsonlPairs else b"x\ty"
    file.write_bytes(good + b"\n" + line)
    with pytest.raises(DataError, match=rf"line 2, byte {len(good) + 1}: {said}.*max_damaged=N"):
        opened(kind, file)
    index = opened(kind, file, max_damaged=1)
    assert texts(index) == [["x", "y"]]
    assert index.damage.records == 1


def test_fields_that_name_nothing_are_refused():
    for kind, fields, said in (
        (JsonlPairs, {"source_field": "a..b"}, r"source_field='a\.\.b' has an empty name"),
        (JsonlPairs, {"target_field": ""}, "target_field='' has an empty name"),
        (TsvPairs, {"source_column": -1}, "source_column=-1 is negative"),
        (TsvPairs, {"source_column": 1}, "source_column and target_column are both 1"),
    ):
        with pytest.raises(ParamError, match=said):
            kind.params(pattern="x", **fields).build()
