"""Masks against slow loops and pycocotools: pasted into images, as run lengths and as polygons."""

import math
import re
import sys

import numpy as np
import pytest
from pycocotools import mask as coco

from lingo.config.base.errors import MissingPackage
from lingo.config.params import ParamError
from lingo.metrics.mask import (
    MAX_COUNT,
    compress_run_lengths,
    expand_run_lengths,
    fill_run_lengths,
    paste_mask,
    paste_masks,
    polygon_run_lengths,
    read_segmentation,
    run_lengths,
    write_run_lengths,
)

DRAW = np.random.default_rng(0)


def slow_paste(mask, box, size):
    """Returns a pasted mask by a loop over pixels and the bins around each."""
    pasted = np.zeros(size, bool)
    num = len(mask)

    def level(i, j):
        return float(mask[i, j]) if 0 <= i < num and 0 <= j < num else 0.0

    top, left, bottom, right = (float(box[i]) * size[i % 2] for i in range(4))
    for r in range(size[0]):
        for c in range(size[1]):
            y = ((r + 0.5) - top) / (bottom - top) * num - 0.5
            x = ((c + 0.5) - left) / (right - left) * num - 0.5
            i, j = math.floor(y), math.floor(x)
            down, across = y - i, x - j
            first = (1 - down) * level(i, j) + down * level(i + 1, j)
            second = (1 - down) * level(i, j + 1) + down * level(i + 1, j + 1)
            pasted[r, c] = (1 - across) * first + across * second >= 0.5
    return pasted


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("num_bins", [1, 4, 28])
def test_a_pasted_mask_is_that_of_a_slow_loop(dtype, num_bins):
    size = (23, 31)
    boxes = DRAW.uniform(-0.2, 0.6, [12, 4]).astype("f")
    boxes[:, 2:] = boxes[:, :2] + DRAW.uniform(0.01, 0.9, [12, 2])
    boxes[0] = [0, 0, 1, 1]
    boxes[1] = [0.5, 0.25, 0.75, 0.5]  # centres of pixels on the rim
    masks = DRAW.integers(0, 256, [12, num_bins, num_bins]) / 255
    masks = (masks.round() if dtype == "uint8" else masks).astype(dtype)
    found = paste_masks(masks, boxes, size=size)
    assert found.any()
    for mask, box, pasted in zip(masks, boxes, found, strict=True):
        np.testing.assert_array_equal(pasted, slow_paste(mask, box, size))


def test_a_full_mask_is_its_box_and_an_empty_box_has_no_pixel():
    box = np.array([0.25, 0.5, 0.75, 1.0])
    pasted = paste_mask(np.ones([7, 7]), box, size=(8, 8))
    expected = np.zeros([8, 8], bool)
    expected[2:6, 4:] = True
    np.testing.assert_array_equal(pasted, expected)
    assert not paste_mask(np.ones([7, 7]), np.zeros(4), size=(8, 8)).any()
    assert not paste_mask(np.ones([7, 7]), box + 3, size=(8, 8)).any()
    assert paste_masks(np.zeros([0, 7, 7]), np.zeros([0, 4]), size=(8, 8)).shape == (0, 8, 8)


def test_levels_above_1_are_an_error():
    mask, box = np.full([2, 2], 255, np.uint8), np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"a mask has the level 255, but masks are in 0\.\.1"):
        paste_mask(mask, box, size=(4, 4))


def random_masks():
    """Returns masks of many sizes, also empty and full ones."""
    sizes = [(1, 1), (1, 9), (7, 1), (20, 30), (64, 48)]
    for size in sizes:
        for rate in (0, 0.02, 0.5, 1):
            yield DRAW.uniform(size=size) < rate
    disc = np.hypot(*np.mgrid[-50:50, -70:70]) < 33
    yield disc


def test_run_lengths_are_those_of_pycocotools_and_return():
    for mask in random_masks():
        counts = run_lengths(mask)
        encoded = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        text = encoded["counts"].decode("ascii")
        assert compress_run_lengths(counts) == text
        np.testing.assert_array_equal(expand_run_lengths(text), counts)
        np.testing.assert_array_equal(fill_run_lengths(counts, mask.shape), mask)
        np.testing.assert_array_equal(fill_run_lengths([*counts, 0, 0], mask.shape), mask)


def test_a_run_that_two_to_a_number_do_not_hold_is_an_error():
    row = np.zeros(3, np.int32)
    write_run_lengths([0, MAX_COUNT - 1], row, where="x.png: an object")
    assert row.tolist() == [0, MAX_COUNT - 1, 0]
    message = r"x\.png: an object has a mask with a run of 67,108,864 pixels, .* below 67,108,864:"
    with pytest.raises(ParamError, match=message):
        write_run_lengths([0, MAX_COUNT], row, where="x.png: an object")


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of pycocotools
def test_polygons_are_drawn_as_by_pycocotools():
    size = (60, 80)
    for _ in range(20):
        angles = np.sort(DRAW.uniform(0, 2 * np.pi, [2, 7]), 1)
        corners = [40, 30] + 25 * np.stack([np.cos(angles), np.sin(angles)], -1)
        polygons = [one.ravel() for one in corners + DRAW.normal(size=[2, 1, 2]) * 3]
        encoded = coco.merge(coco.frPyObjects([one.tolist() for one in polygons], *size))
        read = read_segmentation([one.tolist() for one in polygons], size)
        filled = fill_run_lengths(polygon_run_lengths(read, size), size)
        np.testing.assert_array_equal(filled, coco.decode(encoded))


def test_both_kinds_of_run_lengths_are_read():
    mask = DRAW.uniform(size=[9, 5]) < 0.4
    counts = run_lengths(mask)
    for written in (counts.tolist(), compress_run_lengths(counts)):
        read = read_segmentation({"size": [9, 5], "counts": written}, (9, 5))
        np.testing.assert_array_equal(read, counts)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (None, "has segmentation=None, neither polygons nor run lengths"),
        ([], r"has segmentation=\[\], neither polygons"),
        ([[0, 0, 5, 0, 5]], "has a polygon of 5 numbers: it takes x and y of at least 3 corners"),
        ([[0, 0, 5, 0]], "has a polygon of 4 numbers"),
        ([[0, 0, 5, 0, 5, 5, 1]], "has a polygon of 7 numbers"),
        ([[0, 0, 5, 0, 5, "x"]], "not a list of finite numbers"),
        ([[0, 0, 5, 0, 5, float("nan")]], "not a list of finite numbers"),
        ([3], "has the polygon 3, not a list"),
        ([[0, 0, 9, 0, 9, 8]], "has a polygon with corners outside of its image of 6 x 4 pixels"),
        ({"size": [4, 6], "counts": [3, 4]}, "has counts of 7 pixels, but its image has 4 x 6 ="),
        ({"size": [4, 6], "counts": [3, -4, 25]}, "has a negative count of pixels, -4"),
        ({"size": [4, 6], "counts": "n"}, "has counts that end inside a number"),
        ({"size": [4, 6], "counts": "\x07"}, "has the character '\\x07' in its counts"),
        ({"size": [4, 6], "counts": "oooooooo0"}, "has a number of more than 7 characters"),
        ({"size": [4, 6], "counts": [1.5]}, r"has counts=\[1\.5\], neither whole numbers below"),
        ({"size": [4, 6], "counts": [1 << 70]}, r"has counts=\[\d+\], neither whole numbers below"),
        ({"size": [6, 4], "counts": [24]}, r"has a mask of size=\[6, 4\], but its image has"),
        ({"counts": [24]}, "has a mask of size=None"),
    ],
)
def test_a_damaged_segmentation_is_an_error_of_one_sentence(segmentation, message):
    with pytest.raises(ValueError, match=message.replace("\\x", re.escape("\\x"))):
        read_segmentation(segmentation, (4, 6))


def test_without_pycocotools_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(MissingPackage, match=r"pip install 'lingo-tf\[detection\]'"):
        polygon_run_lengths([np.array([0, 0, 3, 0, 3, 3.0])], (4, 4))
