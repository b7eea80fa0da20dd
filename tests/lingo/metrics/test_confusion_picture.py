"""The image of a confusion matrix: shares are colours, counts and names are legible."""

import numpy as np
import pytest

from lingo.metrics.confusion_picture import MAX_CLASSES, cell_colours, confusion_image
from lingo.metrics.pixel_font import text_dots
from lingo.metrics.results import state_summaries


def contains(pixels, text, scale=1):
    """Returns whether a text is drawn somewhere, in black on white."""
    dots = text_dots(text).repeat(scale, 0).repeat(scale, 1)
    rows = np.flatnonzero(dots.any(1))
    dots = dots[rows[0] : rows[-1] + 1]  # without empty lines
    height, width = dots.shape
    black = pixels[..., 1] == 0
    rows = [row.tobytes() for row in black]
    for top in range(len(rows) - height + 1):
        left = rows[top].find(dots[0].tobytes())
        while left >= 0:
            if (black[top : top + height, left : left + width] == dots).all():
                return True
            left = rows[top].find(dots[0].tobytes(), left + 1)
    return False


def test_right_is_blue_wrong_is_red_and_a_label_without_examples_is_grey():
    colours = cell_colours(np.array([[9.0, 1, 0], [50, 50, 0], [0, 0, 0]])).astype(int)
    red, blue = colours[..., 0], colours[..., 2]
    assert blue[0, 0] > red[0, 0]
    assert red[0, 1] > blue[0, 1]
    assert (colours[0, 2] == 255).all()
    assert len(np.unique(colours[2])) == 1 < 255
    assert colours[0, 0].sum() < colours[1, 1].sum(), "a larger share is darker"


def test_colours_depend_on_the_shares_of_a_row_alone():
    counts = np.array([[3.0, 1], [10, 30]])
    assert (cell_colours(counts) == cell_colours(counts * [[7], [0.5]])).all()


@pytest.mark.parametrize("num_classes", [2, 10, 30, 100])
def test_every_name_is_legible_beside_its_row_and_above_its_column(num_classes):
    names = [f"kind of {number}" for number in range(num_classes)]
    counts = np.eye(num_classes)
    pixels = confusion_image(counts, class_names=names).pixels
    scale = 2 if num_classes <= 30 else 1
    for name in (names[0], names[-1]):
        assert contains(pixels, name, scale)
        assert contains(np.rot90(pixels, -1), name, scale)
    assert max(pixels.shape) < 1000


def test_the_axes_are_named_and_the_legend_says_what_is_what():
    image = confusion_image(np.eye(10))
    assert contains(image.pixels, "prediction", 2)
    assert contains(np.rot90(image.pixels, -1), "label", 2)
    assert "**row** for each label" in image.legend
    assert contains(image.pixels, "7", 2), "without names, the number of the class"


def test_counts_are_shown_where_all_have_room():
    few, many = np.full([4, 4], 0.0), np.full([40, 40], 0.0)
    for counts in (few, many):
        counts[0] = 10_000  # a row of light cells
        counts[0, 0] = 123
    assert contains(confusion_image(few).pixels, "10k", 2)
    assert not contains(confusion_image(many).pixels, "10k", 1)


def test_a_long_name_is_cut():
    names = ["a" * 15 + "bc", "x"]
    assert contains(confusion_image(np.eye(2), class_names=names).pixels, "a" * 14 + "..", 2)


def test_a_state_has_its_image_up_to_a_number_of_classes():
    assert state_summaries("mine", {"confusion": np.eye(2)}).keys() == {"mine/confusion"}
    assert not state_summaries("mine", {"confusion": np.zeros([MAX_CLASSES + 1] * 2)})
    assert not state_summaries("mine", {"sum": 1.0, "weight": 1.0})
    side = confusion_image(np.eye(MAX_CLASSES)).pixels.shape[0]
    assert MAX_CLASSES < side < 1.1 * MAX_CLASSES


def test_a_matrix_that_is_not_square_and_another_number_of_names_are_refused():
    with pytest.raises(ValueError, match=r"is \[K, K\], this one is \[2, 3\]"):
        confusion_image(np.zeros([2, 3]))
    with pytest.raises(ValueError, match="class_names has 1 names, but there are 2 classes"):
        confusion_image(np.eye(2), class_names=["a"])
