"""Classified images in one picture: what is where, and in which colour."""

import numpy as np
import pytest

from lingo.metrics.drawing import RIGHT, WRONG
from lingo.metrics.sample_picture import sample_image

SIDE, MARGIN = 128, 6  # pixels


def picture(images, **fields):
    texts = {name: ["a"] * len(images) for name in ("labels", "predictions")}
    return sample_image(images, **{**texts, "is_right": [True] * len(images)} | fields)


def test_small_images_grow_by_whole_pixels_and_stay_as_they_are():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    pixels = picture(image).pixels
    shown = pixels[MARGIN : MARGIN + SIDE, MARGIN // 2 : MARGIN // 2 + SIDE]
    np.testing.assert_array_equal(shown[8::16, 8::16], np.broadcast_to(image[0], [8, 8, 3]))


def test_floats_are_shades_from_black_to_white():
    levels = np.arange(0, 256, 4, dtype=np.uint8).reshape(1, 8, 8, 1)
    floats = picture((levels / 255).astype("f"))
    np.testing.assert_array_equal(floats.pixels, picture(levels).pixels)


@pytest.mark.parametrize(("size", "columns", "rows"), [(1, 1, 1), (8, 8, 1), (9, 8, 2)])
def test_eight_images_are_in_a_row(size, columns, rows):
    pixels = picture(np.zeros([size, 300, 200, 3], np.uint8)).pixels
    one = picture(np.zeros([1, 300, 200, 3], np.uint8)).pixels
    assert pixels.shape[:2] == (rows * one.shape[0], columns * one.shape[1])
    assert one.shape[1] == SIDE + MARGIN


def test_a_prediction_is_blue_if_it_is_right_and_red_if_not():
    image = np.zeros([1, 8, 8, 1], np.uint8)
    for is_right, colour in ((True, RIGHT), (False, WRONG)):
        pixels = picture(image, predictions=["MMMMM"], is_right=[is_right]).pixels
        second_line = pixels[-MARGIN - 16 : -MARGIN].reshape(-1, 3)
        assert (second_line == colour).all(-1).sum() > 10
