"""True and predicted boxes in one picture: what is where, and in which colour."""

import numpy as np
import pytest

from lingo.metrics.box_picture import PREDICTION, TRUTH, Boxes, box_image

MARGIN, SIDE = 6, 256  # pixels
NOTHING = Boxes(np.zeros([0, 4]), [])


def picture(images, truths=(), predictions=()):
    fill = [NOTHING] * len(images)
    return box_image(images, truths=truths or fill, predictions=predictions or fill).pixels


def has_colour(pixels, colour):
    return (pixels == np.array(colour, np.uint8)).all(-1)


def test_boxes_are_drawn_where_they_are_truth_green_and_prediction_orange():
    image = np.zeros([1, 64, 32, 3], np.uint8)  # shown with four times as many pixels
    truth = Boxes(np.array([[0.25, 0.5, 0.5, 0.75]]), [""])
    prediction = Boxes(np.array([[0.5, 0.0, 1.0, 0.25]]), [""])
    pixels = picture(image, [truth], [prediction])
    for colour, rows, columns in ((TRUTH, (64, 128), (64, 96)), (PREDICTION, (128, 256), (0, 32))):
        where = np.argwhere(has_colour(pixels, colour))
        np.testing.assert_allclose([where[:, 0].min(), where[:, 0].max()], rows, atol=1)
        np.testing.assert_allclose([where[:, 1].min(), where[:, 1].max()], columns, atol=1)
    assert not has_colour(pixels, TRUTH)[80:112, 72:88].any()  # only the outline


@pytest.mark.parametrize("field", ["truths", "predictions"])
def test_names_are_inside_the_picture_also_of_boxes_at_its_border(field):
    image, whole = np.full([1, 256, 256, 1], 255, np.uint8), np.array([[0.0, 0.0, 1.0, 1.0]])
    named, plain = (picture(image, **{field: [Boxes(whole, [n])]}) for n in ("MMMMM", ""))
    where = np.argwhere((named != plain).any(-1))
    assert len(where) > 100
    assert where.max() < 256
    assert np.ptp(where[:, 0]) > 8  # its height


@pytest.mark.parametrize(("size", "columns", "rows"), [(1, 1, 1), (4, 4, 1), (5, 4, 2)])
def test_four_images_are_in_a_row(size, columns, rows):
    pixels = picture(np.zeros([size, 128, 64, 3], np.float32))
    assert pixels.shape == (rows * (SIDE + MARGIN), columns * (SIDE // 2 + MARGIN), 3)
