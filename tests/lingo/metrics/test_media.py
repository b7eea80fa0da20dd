"""Media: what is shown is what was given, and what cannot be shown is told in a few words."""

import numpy as np
import pytest

from lingo.metrics.media import MAX_ROWS, Histogram, Image, Table, Text, media_problem


@pytest.mark.parametrize("shape", [(64, 80), (64, 80, 1), (64, 80, 3)])
def test_pixels_of_every_form_are_the_same_image(shape):
    grey = np.random.default_rng(0).integers(0, 256, (64, 80)).astype(np.uint8)
    pixels = np.broadcast_to(grey.reshape([64, 80, *[1] * (len(shape) - 2)]), shape)
    expected = np.stack([grey] * 3, axis=-1)
    assert (Image(pixels).to_rgb() == expected).all()
    assert (Image(pixels / 255).to_rgb() == expected).all()


def test_floats_are_clipped_and_unknown_ones_are_black():
    pixels = np.array([[-1.0, 2.0, np.nan, 0.5]]).repeat(64, axis=0).repeat(64, axis=1)
    assert Image(pixels).to_rgb()[0, ::64, 0].tolist() == [0, 255, 0, 128]


def test_several_small_images_are_side_by_side_and_enlarged():
    digits = np.zeros([3, 8, 8, 1])
    digits[1] = 1
    row = Image(digits).to_rgb()
    assert row.shape == (64, 3 * 64 + 2 * 4, 3)
    assert not row[:, :64].any()
    assert (row[:, 64 : 64 + 4 + 64 + 4] == 255).all()


def test_a_histogram_has_the_finite_values():
    values = np.array([[1, np.nan], [np.inf, 2]])
    assert Histogram(values).finite().tolist() == [1, 2]


def test_cells_of_a_table_are_shown_as_they_are():
    nasty = "a|b *c* <i>_d_\n`e`"
    text = Table({"text | x": [nasty, b"ok"], "n": np.array([1, 20]), "p": [0.25, np.nan]})
    lines = text.to_markdown().splitlines()
    assert len(lines) == 4
    assert lines[1] == "|---|---|---|"
    assert all(line.count("|") == 4 for line in lines)
    assert not set("*<_`") & set("".join(lines))
    assert lines[3] == "| ok | 20 | nan |"


def test_a_long_table_says_how_many_rows_it_leaves_out():
    text = Table({"n": range(MAX_ROWS + 5)}).to_markdown()
    assert text.endswith("\n\n5 more rows")
    assert len(text.splitlines()) == MAX_ROWS + 2 + 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Image(np.zeros([3, 4, 5])), r"shape \[3, 4, 5\], not \[H, W, 3\]"),
        (Image(np.zeros([3])), r"shape \[3\]"),
        (Image(np.zeros([3, 4], np.int64)), "are int64: take uint8"),
        (Image(np.zeros([0, 4])), "no pixels"),
        (Histogram(np.array(["a"])), "are <U1, not numbers"),
        (Text(3), "a Text holds a int, not a str"),
        (Table({}), "no columns"),
        (Table({"a": "text"}), "column 'a' of a Table is not a list"),
        (Table({"a": [1], "b": [1, 2]}), r"different numbers of cells: {'a': 1, 'b': 2}"),
        ("text", "it is a str"),
        (True, "it is a bool"),
        (np.zeros(2), "it is a ndarray"),
    ],
)
def test_what_cannot_be_shown_is_told(value, why):
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(media_problem(value))


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.5,
        np.float32(2),
        np.array(3.0),
        Image(np.zeros([2, 2], bool)),
        Text(""),
        Table({"a": []}),
    ],
)
def test_what_can_be_shown_has_no_problem(value):
    assert media_problem(value) == ""
