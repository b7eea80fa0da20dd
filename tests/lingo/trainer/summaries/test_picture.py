"""Images of shares over time, against NumPy, pixel by pixel."""

import numpy as np
import pytest

from lingo.trainer.summaries import picture

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
        assert (picture.cell_colours(np.full([4, 3], share)) == WHITE).all()


def test_colours_follow_the_logarithm_of_the_share_relative_to_the_mean():
    matrix = np.random.default_rng(0).gamma(1.0, size=(8, 5))
    matrix[0, 0], matrix[0, 1] = 0.0, 100.0
    colours = picture.cell_colours(matrix)
    for (i, j), value in np.ndenumerate(matrix):
        octaves = np.log2(max(value / np.mean(matrix[:, j]), 1e-9))
        for channel in range(3):
            scale = [colour[channel] for colour in ANCHORS.values()]
            assert colours[i, j, channel] == round(np.interp(octaves, list(ANCHORS), scale))


@pytest.mark.parametrize("column", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_unknown_shares_are_grey(column):
    matrix = np.array([column, [1.0, 1.0]]).T
    assert picture.cell_colours(matrix).tolist() == [[GREY, WHITE], [GREY, WHITE]]


def enlarge(matrix, height, width):
    return np.kron(picture.cell_colours(matrix), np.ones([height, width, 1], int))


def test_cells_are_blocks_of_pixels_and_layers_are_below_each_other():
    first, second = np.random.default_rng(0).gamma(1.0, size=(2, 4, 100))
    blocks = [enlarge(matrix, 16, 7) for matrix in (first, second)]
    gap = np.broadcast_to(GREY, [3, 100 * 7, 3])
    expected = np.concatenate([blocks[0], gap, blocks[1]])
    np.testing.assert_array_equal(picture.overview_image([first, second]), expected)
    np.testing.assert_array_equal(picture.vector_image(first), blocks[0])


def test_an_image_of_very_many_elements_is_one_that_a_browser_shows():
    layers = [np.ones([2048, 2])] * 18
    image = picture.overview_image(layers)
    assert len(image) <= 4096 + 18 * 4
    assert set(np.unique(image)) == {250, 128}
    assert len(picture.vector_image(layers[0])) == 2048


def test_neighbours_that_share_a_row_are_their_mean():
    matrix = np.random.default_rng(0).gamma(1.0, size=(9000, 1))
    means = np.array([[matrix[i : i + 3].mean()] for i in range(0, 9000, 3)])
    np.testing.assert_array_equal(picture.vector_image(matrix)[:, :1], picture.cell_colours(means))
