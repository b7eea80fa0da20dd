"""Which part of an image is erased, and what takes its place."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.ops import random
from lingo.ops.image import cutout, random_erasing
from lingo.ops.image.box import random_boxes
from tests.lingo.ops.image.images import as_float, distance_to_uniform, noise

KEY = random.root_key(9)


@pytest.mark.parametrize("side", [0, 1, 4, 5, 40])
def test_the_square_is_grey_and_its_middle_any_pixel(side: int) -> None:
    for image in (noise(11, 13, 3) // 4, as_float(noise(11, 13, 3) // 4)):
        gray = 128 if image.dtype == np.uint8 else np.float32(128 / 255)
        found = set()
        for i in range(1000):
            result = cutout(image, random.fold(KEY, i), side=side)
            is_gray = (result == gray).all(axis=2)
            np.testing.assert_array_equal(result[~is_gray], image[~is_gray])
            found.add(is_gray.tobytes())
        expected = set()
        y, x = np.ogrid[:11, :13]
        for middle_y in range(11):
            for middle_x in range(13):
                top, left = middle_y - side // 2, middle_x - side // 2
                inside = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
                expected.add(inside.tobytes())
        assert found == expected


def test_half_of_the_images_have_a_rectangle_of_noise() -> None:
    image = np.zeros([40, 50, 3], np.float32)
    values, num_changed = [], 0
    for i in range(600):
        key = random.fold(KEY, i)
        result = random_erasing(image, key)
        if not result.any():
            continue
        num_changed += 1
        limits = {"min_area": 0.02, "max_area": 0.4, "max_aspect": 10 / 3}
        keys = random.key_array([key])
        (box,) = random_boxes([(40, 50)], keys, name="random_erasing", **limits)
        assert box is not None
        is_changed = result.any(axis=2)
        assert is_changed.sum() == is_changed[box.slices].sum() == box.height * box.width
        values.append(result[is_changed].ravel())
    assert abs(num_changed - 300) < 3.3 * math.sqrt(600 / 4)
    assert distance_to_uniform(np.concatenate(values)) < 1.95


def test_the_noise_of_bytes_has_all_levels() -> None:
    result = random_erasing(
        np.zeros([64, 64, 3], np.uint8), KEY, rate=1, min_area=0.9, max_area=0.9, max_aspect=1
    )
    counts = np.bincount(result[result.any(axis=2)].ravel(), minlength=256)
    expected = counts.sum() / 256
    assert counts.all()
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 330  # chi-squared of 255, one of a thousand


def test_nothing_is_erased_where_no_draw_fits_or_at_rate_0() -> None:
    image = noise(2, 500, 3)
    np.testing.assert_array_equal(random_erasing(image, KEY, rate=1, min_area=0.4), image)
    np.testing.assert_array_equal(random_erasing(image, KEY, rate=0), image)


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"side=-1, the side of the square, is negative"):
        cutout(noise(2, 2, 3), KEY, side=-1)
    with pytest.raises(ValueError, match=r"min_area=0.5 and max_area=0.4 are not 0 < min_area"):
        random_erasing(noise(2, 2, 3), KEY, min_area=0.5)
    with pytest.raises(ValueError, match=r"rate=2 is not in 0..1"):
        random_erasing(noise(2, 2, 3), KEY, rate=2)
