"""The first batches of an input, over and over."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.data.derived_input import RepeatedInput
from lingo.data.document_input import TextInput
from lingo.data.record_source import TextFiles
from tests.lingo.data.documents import assert_equal, assert_starts_anywhere


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.txt").write_text("some text, long enough for a few batches of rows")
    source = TextFiles.params(pattern=f"{tmp_path}/*.txt")
    return TextInput.params(batch_size=2, length=4, source=source)


def test_the_first_batches_come_again_and_again(data):
    repeated = RepeatedInput.params(input=data, batches=2).build(seed=3)
    assert_starts_anywhere(lambda: repeated, range(5))
    first = data.copy().set(seed=3).build()
    for step in range(5):
        batch = first.batch(step % 2)
        assert_equal(repeated.batch(step), batch)
        np.testing.assert_array_equal(repeated.example_ids(step), batch["example_id"])
        assert repeated.origins(batch["example_id"]) == first.origins(batch["example_id"])


def test_what_is_known_of_the_data_is_that_of_the_input(data):
    repeated, plain = RepeatedInput.params(input=data, batches=3).build(), data.build()
    assert repeated.offers() == plain.offers()
    assert repeated.specs() == plain.specs()
    assert repeated.fingerprint() == {**plain.fingerprint(), "batches": 3}
    assert repeated.tokenizer.vocab_size == plain.vocab_size
    assert repeated.num_examples() == 6
    assert repeated.epochs(6) == 2.0
    assert [repeated.examples_before(step) for step in (0, 1, 4)] == [0, 2, 8]


def test_a_single_pass_has_each_batch_once(data):
    repeated = RepeatedInput.params(input=data, batches=2).build(repeat=False)
    assert repeated.num_batches() == 2
    with pytest.raises(IndexError, match="no batch 2"):
        repeated.batch(2)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batches", 0, "batches=0 is not positive"),
        ("batch_size", 4, "must stay None"),
        ("max_batches", 4, "must stay None"),
    ],
)
def test_sizes_that_are_not_positive_or_of_the_input_are_refused(data, field, value, message):
    with pytest.raises(ParamError, match=message):
        RepeatedInput.params(input=data, **{field: value}).build()
