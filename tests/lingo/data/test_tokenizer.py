"""Byte tokens lose nothing, and are counted and cut without reading the rest."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.files import DataError
from lingo.data.tokenizer import CharacterTokenizer
from tests.lingo.data.documents import BYTES, Words, reader


def test_every_byte_has_an_id_after_the_special_ones():
    ids = BYTES.encode(bytes(range(256)))
    np.testing.assert_array_equal(ids, np.arange(3, 259))
    assert ids.dtype == np.int32
    assert BYTES.vocab_size == 259


def test_text_comes_back():
    for text in ("", "größer 🙂\n"):
        assert BYTES.decode(BYTES.encode(text)) == text


def test_decode_leaves_out_what_is_no_byte_and_replaces_what_is_no_text():
    special = [BYTES.start_id, *BYTES.encode("ab"), BYTES.end_id, BYTES.pad_id, -1, 259, 10**9]
    assert BYTES.decode(special) == "ab"
    assert BYTES.decode([0xFF + 3, ord("a") + 3]) == "�a"


def test_bytes_of_the_command_line_that_are_no_utf8_are_kept():
    np.testing.assert_array_equal(BYTES.encode("\udcff"), [0xFF + 3])


def test_bytes_are_counted_without_reading():
    def refuse(start, stop):
        raise AssertionError(f"read {start}:{stop}")

    assert BYTES.measure(refuse, 12) == (12, ())


def test_a_part_is_a_slice_of_the_whole():
    data = b"some words of different length"
    for tokenizer in (BYTES, Words.params().build()):
        whole = tokenizer.encode(data)
        assert tokenizer.measure(reader(data), len(data)).tokens == len(whole)
        part = tokenizer.part(reader(data), len(data), np.zeros([0, 2], np.int64), 1, 4)
        np.testing.assert_array_equal(part, whole[1:4])


def test_a_part_reads_and_encodes_no_more_than_from_cut_to_cut():
    data, num_read = b"a bb ccc dddd eeeee", []
    cuts = np.array([[5, 2], [9, 3]])  # before "ccc", before "dddd"
    words = Words.params().build()

    def read(start, stop):
        num_read.append((start, stop))
        return data[start:stop]

    for begin in range(6):
        for end in range(begin, 6):
            part = words.part(read, len(data), cuts, begin, end)
            np.testing.assert_array_equal(part, [4, 5, 6, 7, 8][begin:end])
    words.part(read, len(data), cuts, 2, 3)
    assert num_read[-1] == (5, 9)


def test_characters_are_tokens_in_the_order_of_their_list() -> None:
    tokenizer = CharacterTokenizer.params().build()
    assert tokenizer.vocab_size == 31
    ids = tokenizer.encode("It's a")
    assert ids.tolist() == [3 + " 'abcdefghijklmnopqrstuvwxyz".index(c) for c in "it's a"]
    assert tokenizer.decode([2, *ids, 1, 0]) == "it's a"
    assert (tokenizer.encode(b"ab") == tokenizer.encode("AB")).all()


def test_an_unknown_character_is_refused_or_left_out() -> None:
    with pytest.raises(DataError, match="'a1' has '1', which is not in characters"):
        CharacterTokenizer.params().build().encode("a1")
    tokenizer = CharacterTokenizer.params(unknown="leave_out", is_lower_case=False).build()
    assert tokenizer.decode(tokenizer.encode("aB1c")) == "ac"
    assert "leave_out" in tokenizer.describe()
    for characters in ("", "aa"):
        with pytest.raises(ParamError, match="is empty, or has a character twice"):
            CharacterTokenizer.params(characters=characters).build()
