"""The first batches of an input, over and over."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.data.repeated_input import RepeatedInput
from lingo.data.source import TextFiles
from lingo.data.text_input import TextInput


@pytest.fixture
def data(tmp_path: pathlib.Path) -> Params:
    (tmp_path / "a.txt").write_text("some text, long enough for a few batches of rows")
    source = TextFiles.params(pattern=f"{tmp_path}/*.txt")
    return TextInput.params(batch_size=2, length=4, source=source)


def test_the_first_batches_come_again_and_again(data: Params) -> None:
    repeated = RepeatedInput.params(input=data, batches=2).build(seed=3)
    first = data.copy().set(seed=3).build()
    for step in range(5):
        batch, expected = repeated.batch(step), first.batch(step % 2)
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value)


def test_a_part_of_the_rows_is_that_of_the_input(data: Params) -> None:
    repeated = RepeatedInput.params(input=data).build()
    np.testing.assert_array_equal(
        repeated.batch(7, rows=slice(1, 2))["tokens"], repeated.batch(7)["tokens"][1:2]
    )


def test_what_is_known_of_the_data_is_that_of_the_input(data: Params) -> None:
    repeated, plain = RepeatedInput.params(input=data, batches=3).build(), data.build()
    assert repeated.offers() == plain.offers()
    assert repeated.specs() == plain.specs()
    assert repeated.fingerprint() == {**plain.fingerprint(), "batches": 3}
    assert repeated.tokenizer.vocab_size == plain.vocab_size
    assert repeated.num_examples() == 6
    assert repeated.epochs(6) == 2.0


def test_examples_that_are_read_again_count_again(data: Params) -> None:
    repeated = RepeatedInput.params(input=data, batches=3).build()
    assert [repeated.examples_before(step) for step in (0, 1, 4)] == [0, 2, 8]


def test_the_ids_of_a_step_are_known_without_its_batch(data: Params) -> None:
    repeated = RepeatedInput.params(input=data, batches=3).build()
    for step in (0, 2, 3, 7):
        ids = repeated.batch(step)["example_id"]
        np.testing.assert_array_equal(repeated.example_ids(step), ids)


def test_a_single_pass_has_each_batch_once(data: Params) -> None:
    repeated = RepeatedInput.params(input=data, batches=2).build(repeat=False)
    assert repeated.num_batches() == 2
    with pytest.raises(IndexError, match="no batch 2"):
        repeated.batch(2)


def test_a_number_that_is_not_positive_is_refused(data: Params) -> None:
    with pytest.raises(ParamError, match=r"batches=0 is not positive"):
        RepeatedInput.params(input=data, batches=0).build()


@pytest.mark.parametrize("field", ["batch_size", "max_batches"])
def test_sizes_are_those_of_the_input(data: Params, field: str) -> None:
    with pytest.raises(ParamError, match="not its own"):
        RepeatedInput.params(input=data, **{field: 4}).build()


def test_an_example_is_known_as_the_input_knows_it(data: Params) -> None:
    repeated = RepeatedInput.params(input=data, batches=2).build(seed=3)
    numbers = repeated.batch(2)["example_id"]
    assert repeated.origins(numbers) == data.copy().set(seed=3).build().origins(np.array([0, 1]))
