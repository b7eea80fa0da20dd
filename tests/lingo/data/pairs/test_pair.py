"""A pair is a document with U+001E between its sides, each of which is encoded by itself."""

import numpy as np
import pytest

from lingo.data.files import DataError
from lingo.data.pairs.pair import PairTokenizer, pair
from lingo.data.record_source import CorruptRecord
from lingo.data.tokenizer import ByteTokenizer
from tests.lingo.data.documents import Words, reader


@pytest.mark.parametrize(
    ("source", "target", "document"),
    [
        ("größer", "ja", "größer\x1eja".encode()),
        ("half \udc80 of two", "x", b"half ? of two\x1ex"),
        ("", "x", b""),
        ("x", "", b""),
    ],
)
def test_a_pair_is_its_sides_with_a_separator_between_them(source, target, document):
    assert pair(source, target, "here") == document


def test_a_side_that_holds_the_separator_is_damaged():
    for source, target in (("a\x1eb", "c"), ("a", "b\x1ec")):
        with pytest.raises(CorruptRecord, match=r"a\.txt: it has U\+001E"):
            pair(source, target, "a.txt")


def test_the_only_cut_of_a_pair_is_behind_the_end_of_its_source():
    text = pair("one three", "seven", "here")
    assert PairTokenizer.params().build().measure(reader(text), len(text)) == (15, [(10, 10)])
    words = PairTokenizer.params(tokenizer=Words).build()
    assert words.measure(reader(text), len(text)) == (4, [(10, 3)])
    assert words.describe() == "pairs of words"
    assert words.vocab_size == 1000


@pytest.mark.parametrize("inner", [ByteTokenizer, Words])
def test_any_part_of_a_pair_is_encoded_as_in_the_whole(inner):
    tokenizer = PairTokenizer.params(tokenizer=inner).build()
    text = pair("one three", "of seven", "here")
    tokens, cuts = tokenizer.measure(reader(text), len(text))
    whole = tokenizer.encode(text)
    side = inner.params().build()
    wanted = [*side.encode("one three"), side.end_id, *side.encode("of seven")]
    assert whole.tolist() == wanted
    assert len(wanted) == tokens
    for begin in range(tokens):
        for end in range(begin + 1, tokens + 1):
            part = tokenizer.part(reader(text), len(text), np.array(cuts), begin, end)
            np.testing.assert_array_equal(part, whole[begin:end])


@pytest.mark.parametrize("text", [b"no separator", b"a\x1eb\x1ec"])
def test_a_document_that_is_no_pair_is_refused(text):
    with pytest.raises(DataError, match=r"has U\+001E once"):
        PairTokenizer.params().build().measure(reader(text), len(text))
