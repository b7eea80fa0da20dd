"""Byte tokens lose nothing, and are counted and cut without reading the rest."""

import numpy as np

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
