"""Sentinels are ids beyond a tokenizer's."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.objectives.sentinels import SentinelTokenizer
from tests.lingo.data.documents import BYTES, reader


def test_sentinels_follow_the_ids_of_the_tokenizer():
    tokenizer = SentinelTokenizer.params(num_sentinels=3).build()
    assert tokenizer.vocab_size == 262
    assert tokenizer.sentinels.tolist() == [259, 260, 261]
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.start_id) == (0, 1, 2)
    assert tokenizer.describe() == "bytes and 3 sentinels"


def test_text_is_encoded_as_by_the_tokenizer_alone():
    tokenizer, text = SentinelTokenizer.params().build(), "größer <extra_id_0>"
    np.testing.assert_array_equal(tokenizer.encode(text), BYTES.encode(text))
    data, cuts = text.encode(), np.zeros((0, 2), np.int64)
    read = reader(data)
    assert tokenizer.measure(read, len(data)) == BYTES.measure(read, len(data))
    part = tokenizer.part(read, len(data), cuts, 2, 5)
    np.testing.assert_array_equal(part, BYTES.part(read, len(data), cuts, 2, 5))


def test_sentinels_can_be_read():
    tokenizer = SentinelTokenizer.params().build()
    ids = [259, *BYTES.encode("ab"), 260, 269, *BYTES.encode("ü"), 1, 500]
    assert tokenizer.decode(ids) == "<extra_id_0>ab<extra_id_1><extra_id_10>ü"


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "01", "100"])
def test_what_is_no_number_of_a_sentinel_is_text(number):
    tokenizer, text = SentinelTokenizer.params().build(), f"a<extra_id_{number}>"
    np.testing.assert_array_equal(tokenizer.encode_marked(text), tokenizer.encode(text))
    assert tokenizer.decode([]) == ""


def test_no_sentinels_are_refused():
    with pytest.raises(ParamError, match="num_sentinels=0 is not positive"):
        SentinelTokenizer.params(num_sentinels=0).build()
