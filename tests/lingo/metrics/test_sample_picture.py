"""Images in one picture, classified or with boxes: what is where, and in which colour."""

import numpy as np
import pytest

from lingo.metrics.drawing import RIGHT, WRONG
from lingo.metrics.sample_picture import (
    BOX_LEGEND,
    MASK_LEGEND,
    PREDICTION,
    TRUTH,
    Boxes,
    box_image,
    sample_image,
)

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


@pytest.mark.parametrize(("size", "columns", "rows"), [(1, 1, 1), (4, 4, 1), (5, 4, 2)])
def test_four_images_are_in_a_row(size, columns, rows):
    pixels = picture(np.zeros([size, 300, 200, 3], np.uint8)).pixels
    one = picture(np.zeros([1, 300, 200, 3], np.uint8)).pixels
    assert pixels.shape[:2] == (rows * one.shape[0], columns * one.shape[1])
    assert one.shape[1] == SIDE + MARGIN


def test_a_prediction_is_blue_if_it_is_right_and_red_if_not():
    image = np.zeros([1, 8, 8, 1], np.uint8)
    for is_right, colour in ((True, RIGHT), (False, WRONG)):
        pixels = picture(image, predictions=["MMMMM"], is_right=[is_right]).pixels
        second_line = pixels[-MARGIN - 23 : -MARGIN].reshape(-1, 3)
        assert (second_line == colour).all(-1).sum() > 10


@pytest.mark.parametrize(("name", "height"), [("W", 14), ("W" * 16, 5)])
def test_a_caption_is_as_large_as_fits(name, height):
    image = np.full([1, 8, 8, 1], 255, np.uint8)
    ink = (picture(image, labels=[name], predictions=[""]).pixels < 128).all(-1)
    rows, columns = np.nonzero(ink)
    assert np.ptp(rows) == pytest.approx(height, abs=2)
    assert columns.min() > 0
    assert columns.max() < ink.shape[1] - 1


BOX_SIDE = 256  # pixels
NOTHING = Boxes(np.zeros([0, 4]), [])


def boxed(images, truths=(), predictions=()):
    fill = [NOTHING] * len(images)
    return box_image(images, truths=truths or fill, predictions=predictions or fill).pixels


def has_colour(pixels, colour):
    return (pixels == np.array(colour, np.uint8)).all(-1)


def test_boxes_are_drawn_where_they_are_truth_green_and_prediction_orange():
    image = np.zeros([1, 64, 32, 3], np.uint8)  # shown with four times as many pixels
    truth = Boxes(np.array([[0.25, 0.5, 0.5, 0.75]]), [""])
    prediction = Boxes(np.array([[0.5, 0.0, 1.0, 0.25]]), [""])
    pixels = boxed(image, [truth], [prediction])
    for colour, rows, columns in ((TRUTH, (64, 128), (64, 96)), (PREDICTION, (128, 256), (0, 32))):
        where = np.argwhere(has_colour(pixels, colour))
        np.testing.assert_allclose([where[:, 0].min(), where[:, 0].max()], rows, atol=1)
        np.testing.assert_allclose([where[:, 1].min(), where[:, 1].max()], columns, atol=1)
    assert not has_colour(pixels, TRUTH)[80:112, 72:88].any()  # only the outline


@pytest.mark.parametrize("field", ["truths", "predictions"])
def test_names_are_inside_the_picture_also_of_boxes_at_its_border(field):
    image, whole = np.full([1, 256, 256, 1], 255, np.uint8), np.array([[0.0, 0.0, 1.0, 1.0]])
    named, plain = (boxed(image, **{field: [Boxes(whole, [n])]}) for n in ("MMMMM", ""))
    where = np.argwhere((named != plain).any(-1))
    assert len(where) > 100
    assert where.max() < 256
    assert np.ptp(where[:, 0]) > 8  # its height


@pytest.mark.parametrize(("size", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_two_images_with_boxes_are_in_a_row(size, columns, rows):
    pixels = boxed(np.zeros([size, 128, 64, 3], np.float32))
    assert pixels.shape == (rows * (BOX_SIDE + MARGIN), columns * (BOX_SIDE // 2 + MARGIN), 3)


def test_masks_colour_the_pixels_of_their_objects_and_no_others():
    image = np.full([1, 64, 64, 3], 100, np.uint8)  # shown with four times as many pixels
    half = np.repeat([[[1.0, 0.0]]], 8, 1).repeat(4, 2)  # the left half of its box
    truth = Boxes(np.array([[0.25, 0.25, 0.75, 0.75]]), [""], half)
    prediction = Boxes(np.array([[0.25, 0.25, 0.75, 0.75]]), [""], half > 0.5)
    plain = boxed(image, [truth._replace(masks=None)])
    pixels = boxed(image, [truth])
    where = np.argwhere((pixels != plain).any(-1))
    np.testing.assert_allclose([*where.min(0), *where.max(0)], [66, 66, 189, 127], atol=1)
    assert len(where) == pytest.approx(124 * 62, rel=0.05)
    covered = 0.6 * 100 + 0.4 * np.array(TRUTH)
    np.testing.assert_allclose(pixels[100, 100], covered, atol=1)
    both = boxed(image, [truth], [prediction])
    np.testing.assert_allclose(both[100, 100], 0.6 * covered + 0.4 * np.array(PREDICTION), atol=1)


def test_the_legend_speaks_of_masks_where_there_are_any():
    image = np.zeros([1, 8, 8, 3], np.uint8)
    masked = Boxes(np.zeros([0, 4]), [], np.zeros([0, 2, 2]))
    legends = [
        box_image(image, truths=[one], predictions=[NOTHING]).legend for one in (NOTHING, masked)
    ]
    assert legends == [BOX_LEGEND, MASK_LEGEND]
