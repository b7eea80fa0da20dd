"""The image of a confusion matrix: shares are colours, counts and names are legible."""

import numpy as np
import pytest

from lingo.metrics.confusion_picture import MAX_CLASSES, confusion_colours, confusion_image
from lingo.metrics.results import state_summaries

MARGIN = 6  # pixels at the right and below the matrix


def ink(one, other):
    """Returns where two pictures of one size differ, bool [H, W]."""
    return (one.pixels != other.pixels).any(-1)


def test_right_is_blue_wrong_is_red_and_a_label_without_examples_is_grey():
    colours = confusion_colours(np.array([[9.0, 1, 0], [50, 50, 0], [0, 0, 0]])).astype(int)
    red, blue = colours[..., 0], colours[..., 2]
    assert blue[0, 0] > red[0, 0]
    assert red[0, 1] > blue[0, 1]
    assert (colours[0, 2] == 255).all()
    assert len(np.unique(colours[2])) == 1 < 255
    assert colours[0, 0].sum() < colours[1, 1].sum(), "a larger share is darker"


def test_colours_depend_on_the_shares_of_a_row_alone():
    counts = np.array([[3.0, 1], [10, 30]])
    assert (confusion_colours(counts) == confusion_colours(counts * [[7], [0.5]])).all()


@pytest.mark.parametrize(("num_classes", "cell"), [(2, 80), (10, 64), (30, 21), (100, 10)])
def test_a_name_is_beside_its_row_and_above_its_column(num_classes, cell):
    names = ["the widest name", *(f"kind {number}" for number in range(1, num_classes))]
    plain = confusion_image(np.eye(num_classes), class_names=names)
    number = num_classes - 1
    names[number] = "KIND" + names[number].removeprefix("kind")
    differs = ink(plain, confusion_image(np.eye(num_classes), class_names=names))
    top, left = (size - MARGIN - num_classes * cell for size in differs.shape)
    beside, above = differs[:, :left], differs[:top]
    row, column = top + number * cell, left + number * cell
    assert beside[row : row + cell].any()
    assert above[:, column : column + cell].any()
    beside[row : row + cell] = above[:, column : column + cell] = False
    assert not differs.any(), "nothing else has changed"
    assert max(differs.shape) < 1150


def test_the_axes_are_named_and_the_legend_says_what_is_what():
    image = confusion_image(np.eye(10))
    top, left = (size - MARGIN - 640 for size in image.pixels.shape[:2])
    title = image.pixels[: top // 2, left : left + 640]
    assert (title < 128).any()
    label = np.rot90(image.pixels, -1)[: left // 2, -MARGIN - 640 : -MARGIN]
    assert (label < 128).any()
    assert "**row** for each label" in image.legend


def test_counts_are_shown_where_all_have_room():
    """Twice the counts have the same shares, and so the same colours."""
    for num_classes, is_shown in ((4, True), (40, False)):
        counts = np.full([num_classes, num_classes], 0.0)
        counts[0], counts[0, 0] = 1000, 123
        assert ink(confusion_image(counts), confusion_image(2 * counts)).any() == is_shown


def test_a_long_name_is_cut():
    long, other, short = (
        confusion_image(np.eye(2), class_names=[name, "x"])
        for name in ("a" * 15 + "bc", "a" * 14 + "xyz", "a" * 14)
    )
    assert not ink(long, other).any()
    assert long.pixels.shape[1] > short.pixels.shape[1]


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
