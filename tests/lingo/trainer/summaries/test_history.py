"""Vectors over time: columns are means of reports, however many there are."""

import numpy as np
import pytest

from lingo.trainer.summaries import history as history_
from lingo.trainer.summaries.history import History, round_digits


@pytest.fixture(autouse=True)
def four_columns(monkeypatch):
    monkeypatch.setattr(history_, "MAX_COLUMNS", 4)


def history(*rows):
    reports = History()
    for row in rows:
        reports.add(row)
    return reports.matrices()


@pytest.mark.parametrize("num_reports", range(1, 40))
def test_columns_are_means_of_equally_many_reports(num_reports):
    values = np.random.default_rng(0).normal(size=(num_reports, 3))
    size = 1
    while -(-num_reports // size) > 4:
        size *= 2
    expected = [values[i : i + size].mean(axis=0) for i in range(0, num_reports, size)]
    matrices = history(*({"step": i, "a": row.tolist()} for i, row in enumerate(values)))
    np.testing.assert_allclose(matrices["a"], np.transpose(expected), rtol=1e-12)


def test_columns_without_a_name_are_unknown():
    matrices = history({"a": [1.0]}, {"a": [2.0], "b": [3.0, 4.0]}, {"b": [5.0, 6.0]})
    np.testing.assert_equal(matrices["a"], [[1.0, 2.0, np.nan]])
    np.testing.assert_equal(matrices["b"], [[np.nan, 3.0, 5.0], [np.nan, 4.0, 6.0]])


def test_the_last_size_of_a_name_counts():
    rows = [{"a": [1.0]}, {"a": [2.0, 3.0]}]
    np.testing.assert_equal(history(*rows)["a"], [[np.nan, 2.0], [np.nan, 3.0]])
    many = history(*rows, *rows, *rows)
    np.testing.assert_equal(many["a"], [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])


def test_an_unknown_number_of_a_row_is_unknown_in_its_column():
    np.testing.assert_equal(history({"a": [None, 1.0]})["a"], [[np.nan], [1.0]])


@pytest.mark.parametrize(
    "value", [1.0, "text", None, [], [[1.0], [2.0]], ["a"], [{}], [10**400], [[1], [2, 3]]]
)
def test_values_that_are_not_vectors_are_ignored(value):
    assert history({"step": 1, "a": value}) == {}


def test_a_row_has_four_digits_of_each_number():
    vector = np.array([0.123456, 1e-9, 0.0, 12345.6], np.float32)
    assert round_digits(vector) == [0.1235, 1e-9, 0.0, 12350.0]
