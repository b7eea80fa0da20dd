"""The comparison of an export with its run."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.data import ArrayInput
from lingo.export.check import Difference, compare, read_examples, split_examples
from lingo.export.signature import Predict, count_changes


def test_the_largest_difference_is_relative_to_the_largest_value() -> None:
    expected = {"x": np.array([1.0, -8.0], np.float32), "k": np.array([1, 2])}
    found = {"x": np.array([1.4, -8.0], np.float32), "k": np.array([1, 3])}
    difference = compare(Predict({}), expected, found)
    assert difference == pytest.approx(Difference(0.05, 1, 2))
    both = difference.merge(Difference(0.01, 0, 6))
    assert (both.floats, both.others) == (difference.floats, 1 / 8)  # over all calls


@pytest.mark.parametrize("value", [[1.0], [1.0, np.nan], [1.0, np.inf]])
def test_other_shapes_and_numbers_that_are_not_finite_differ_without_bound(value) -> None:
    expected = {"x": np.array([1.0, 2.0], np.float32)}
    assert compare(Predict({}), expected, {"x": np.array(value, np.float32)}).floats == np.inf
    assert compare(Predict({}), expected, {}).floats == np.inf


def test_what_is_not_finite_in_both_is_equal() -> None:
    values = {"x": np.array([np.nan, -np.inf, 1.0], np.float32)}
    assert compare(Predict({}), values, values) == Difference()


def test_texts_are_compared_up_to_the_first_token_that_differs() -> None:
    expected = np.array([[[5, 6, 7, 2, 2], [5, 2, 2, 2, 2]]])
    found = np.array([[[5, 9, 4, 4, 4], [5, 2, 2, 2, 2]]])
    lengths = np.array([[5, 1]])  # the second has an end after one token
    assert count_changes(expected, found, lengths) == (1, 2 + 2)
    assert count_changes(expected, expected, lengths) == (0, 5 + 2)


def test_examples_leave_out_padding_and_are_at_most_the_number() -> None:
    data = ArrayInput.params(function=numbers, batch_size=4, repeat=False).build()
    whole = read_examples(data)["x"].tolist()
    assert sorted(whole) == [0, 1, 2, 3, 4, 5]
    assert read_examples(data, 3)["x"].tolist() == whole[:3]


def test_static_batches_are_filled_up_with_the_first_examples() -> None:
    examples = {"x": np.arange(5), "weights": np.ones(5)}
    static, others = (
        [b["x"].tolist() for b in split_examples(examples, batch_size=3, is_static=is_static)]
        for is_static in (True, False)
    )
    assert static == [[0, 1, 2], [3, 4, 0]]
    assert others == [[0, 1, 2], [3, 4]]


def numbers() -> dict[str, np.ndarray]:
    return {"x": np.arange(6)}
