"""Pictures of shares over time, against NumPy, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.trainer.summaries import picture

WHITE, GREY = 120, 241


def test_equal_shares_are_white_whatever_they_add_up_to() -> None:
    for share in (1e-6, 0.25, 1.0, 3e8):
        assert (picture.cells(np.full([4, 3], share)) == WHITE).all()
    assert picture.colours()[WHITE].tolist() == [250, 250, 250]


def test_colours_go_with_the_logarithm_of_what_is_relative_to_the_mean() -> None:
    matrix = np.random.default_rng(0).gamma(1.0, size=(8, 5))
    found = picture.cells(matrix)
    for (i, j), value in np.ndenumerate(matrix):
        octaves = min(max(np.log2(value / np.mean(matrix[:, j])), -2.0), 2.0)
        assert found[i, j] == round(120 + 60 * octaves)


def test_more_is_red_less_is_blue_and_the_ends_are_darkest() -> None:
    shares = np.array([[0.0], [0.5], [1.0], [2.0], [100.0]])
    red, green, blue = picture.colours()[picture.cells(shares / shares.mean())][:, 0].T.astype(int)
    assert blue[0] > red[0]
    assert red[-1] > blue[-1]
    brightness = (picture.colours().astype(int) @ [1, 1, 1])[:GREY]
    assert (np.diff(brightness[: WHITE + 1]) > 0).all()
    assert (np.diff(brightness[WHITE:]) < 0).all()
    assert green.max() <= 250


@pytest.mark.parametrize("column", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_what_is_unknown_is_grey(column: list[float]) -> None:
    matrix = np.array([column, [1.0, 1.0]]).T
    assert picture.cells(matrix).tolist() == [[GREY, WHITE], [GREY, WHITE]]


def test_cells_are_blocks_of_pixels_and_layers_stand_below_each_other() -> None:
    first, second = np.random.default_rng(0).gamma(1.0, size=(2, 4, 100))
    found = picture.overview([first, second])
    tall, wide = 16, 7
    blocks = [np.kron(picture.cells(m), np.ones([tall, wide])) for m in (first, second)]
    gap = np.full([3, 100 * wide], GREY)
    np.testing.assert_array_equal(found, np.concatenate([blocks[0], gap, blocks[1]]))
    np.testing.assert_array_equal(picture.one(first), blocks[0])


def test_a_picture_of_very_many_elements_stays_one_that_a_browser_shows() -> None:
    layers = [np.ones([2048, 2])] * 18

    found = picture.overview(layers)
    assert len(found) <= 4096 + 18 * 4
    assert set(np.unique(found)) == {WHITE, GREY}
    assert len(picture.one(layers[0])) == 2048


def test_joined_neighbours_are_their_means() -> None:
    matrix = np.random.default_rng(0).gamma(1.0, size=(9000, 1))
    joined = np.array([[matrix[i : i + 3].mean()] for i in range(0, 9000, 3)])
    np.testing.assert_array_equal(picture.one(matrix)[:, :1], picture.cells(joined))
