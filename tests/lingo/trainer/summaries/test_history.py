"""Vectors over time: columns are means of reports; images of them against NumPy, by pixel."""

import numpy as np
import pytest

from lingo.trainer.summaries import history
from lingo.trainer.summaries.history import History, round_digits


@pytest.fixture(autouse=True)
def four_columns(monkeypatch):
    monkeypatch.setattr(history, "MAX_COLUMNS", 4)


def matrices_of(*rows):
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
    matrices = matrices_of(*({"step": i, "a": row.tolist()} for i, row in enumerate(values)))
    np.testing.assert_allclose(matrices["a"], np.transpose(expected), rtol=1e-12)


def test_columns_without_a_name_are_unknown():
    matrices = matrices_of({"a": [1.0]}, {"a": [2.0], "b": [3.0, 4.0]}, {"b": [5.0, 6.0]})
    np.testing.assert_equal(matrices["a"], [[1.0, 2.0, np.nan]])
    np.testing.assert_equal(matrices["b"], [[np.nan, 3.0, 5.0], [np.nan, 4.0, 6.0]])


def test_the_last_size_of_a_name_counts():
    rows = [{"a": [1.0]}, {"a": [2.0, 3.0]}]
    np.testing.assert_equal(matrices_of(*rows)["a"], [[np.nan, 2.0], [np.nan, 3.0]])
    many = matrices_of(*rows, *rows, *rows)
    np.testing.assert_equal(many["a"], [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]])


def test_an_unknown_number_of_a_row_is_unknown_in_its_column():
    np.testing.assert_equal(matrices_of({"a": [None, 1.0]})["a"], [[np.nan], [1.0]])


@pytest.mark.parametrize(
    "value", [1.0, "text", None, [], [[1.0], [2.0]], ["a"], [{}], [10**400], [[1], [2, 3]]]
)
def test_values_that_are_not_vectors_are_ignored(value):
    assert matrices_of({"step": 1, "a": value}) == {}


def test_a_row_has_four_digits_of_each_number():
    vector = np.array([0.123456, 1e-9, 0.0, 12345.6], np.float32)
    assert round_digits(vector) == [0.1235, 1e-9, 0.0, 12350.0]


ANCHORS = {
    -2: (9, 29, 88),
    -1: (52, 126, 186),
    0: (250, 250, 250),
    1: (217, 95, 50),
    2: (103, 6, 18),
}
WHITE, GREY = [250, 250, 250], [128, 128, 128]


def test_equal_shares_are_white_whatever_they_add_up_to():
    for share in (1e-6, 0.25, 1.0, 3e8):
        assert (history.cell_colours(np.full([4, 3], share)) == WHITE).all()


def test_colours_follow_the_logarithm_of_the_share_relative_to_the_mean():
    matrix = np.random.default_rng(0).gamma(1.0, size=(8, 5))
    matrix[0, 0], matrix[0, 1] = 0.0, 100.0
    colours = history.cell_colours(matrix)
    for (i, j), value in np.ndenumerate(matrix):
        octaves = np.log2(max(value / np.mean(matrix[:, j]), 1e-9))
        for channel in range(3):
            scale = [colour[channel] for colour in ANCHORS.values()]
            assert colours[i, j, channel] == round(np.interp(octaves, list(ANCHORS), scale))


@pytest.mark.parametrize("column", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_unknown_shares_are_grey(column):
    matrix = np.array([column, [1.0, 1.0]]).T
    assert history.cell_colours(matrix).tolist() == [[GREY, WHITE], [GREY, WHITE]]


def enlarge(matrix, height, width):
    return np.kron(history.cell_colours(matrix), np.ones([height, width, 1], int))


def test_cells_are_blocks_of_pixels_and_layers_are_below_each_other():
    first, second = np.random.default_rng(0).gamma(1.0, size=(2, 4, 100))
    blocks = [enlarge(matrix, 16, 7) for matrix in (first, second)]
    gap = np.broadcast_to(GREY, [3, 100 * 7, 3])
    expected = np.concatenate([blocks[0], gap, blocks[1]])
    np.testing.assert_array_equal(history.overview_image([first, second]), expected)
    np.testing.assert_array_equal(history.vector_image(first), blocks[0])


def test_an_image_of_very_many_elements_is_one_that_a_browser_shows():
    layers = [np.ones([2048, 2])] * 18
    image = history.overview_image(layers)
    assert len(image) <= 4096 + 18 * 4
    assert set(np.unique(image)) == {250, 128}
    assert len(history.vector_image(layers[0])) == 2048


def test_neighbours_that_share_a_row_are_their_mean():
    matrix = np.random.default_rng(0).gamma(1.0, size=(9000, 1))
    means = np.array([[matrix[i : i + 3].mean()] for i in range(0, 9000, 3)])
    np.testing.assert_array_equal(history.vector_image(matrix)[:, :1], history.cell_colours(means))
