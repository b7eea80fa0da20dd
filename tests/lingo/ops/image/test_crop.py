"""Parts of images: where they are, and how often."""

from __future__ import annotations

import math
import random as python_random

import numpy as np
import pytest

from lingo.config.lazy import keras
from lingo.ops import random
from lingo.ops.image import center_crop, flip, inception_crop, pad_and_crop, resize
from lingo.ops.image.crop import Box, inception_boxes
from tests.lingo.ops.image.images import distance_to_uniform, noise

KEY = random.root_key(5)
NUM_DRAWS = 2000


def boxes(size: tuple[int, int], **fields: float) -> np.ndarray:
    """Returns many boxes, [N, (top, left, height, width)]."""
    keys = random.fold(KEY, np.arange(NUM_DRAWS))
    return np.array(inception_boxes([size] * NUM_DRAWS, keys, **fields))


def box(size: tuple[int, int], **fields: float) -> Box:
    """Returns one box."""
    return inception_boxes([size], random.key_array([KEY]), **fields)[0]


def test_areas_ratios_and_places_are_uniform_where_every_draw_fits() -> None:
    found = boxes((4000, 6000), min_area=0.08, max_area=0.4)
    top, left, height, width = found.T
    area = height * width / (4000 * 6000)
    assert distance_to_uniform((area - 0.08) / 0.32) < 1.95
    ratio = np.log(width / height) / math.log(4 / 3)
    assert distance_to_uniform((ratio + 1) / 2) < 1.95
    assert distance_to_uniform((top + 0.5) / (4000 - height + 1)) < 1.95
    assert distance_to_uniform((left + 0.5) / (6000 - width + 1)) < 1.95
    assert abs(np.corrcoef([area, ratio, top / (4000 - height), left / (6000 - width)])[0, 1]) < 0.1


def test_boxes_of_a_square_image_are_distributed_as_those_of_plain_python() -> None:
    """Large areas fit less often, which the first of ten draws that fits does not make up for."""

    def slow_area(draws: python_random.Random) -> float:
        for _ in range(10):
            area, ratio = draws.uniform(0.08, 1), 1.0
            ratio = math.exp(draws.uniform(-math.log(4 / 3), math.log(4 / 3)))
            if area * ratio <= 1 and area / ratio <= 1:
                return area
        return 1.0

    draws = python_random.Random(3)
    expected = np.sort([slow_area(draws) for _ in range(10 * NUM_DRAWS)])
    found = boxes((5000, 5000))
    area = found[:, 2] * found[:, 3] / 5000**2
    quantiles = np.searchsorted(expected, area) / len(expected)
    assert distance_to_uniform(quantiles) < 1.95 * math.sqrt(1.1)  # two samples


def test_boxes_lie_within_small_images_with_areas_and_ratios_as_near_as_pixels_allow() -> None:
    top, left, height, width = boxes((8, 11)).T
    assert (np.minimum(top, left) >= 0).all()
    assert ((top + height <= 8) & (left + width <= 11)).all()
    assert (height * width >= 0.08 * 88 - (height + width) / 2).all()
    assert ((height - 0.5) / (width + 0.5) < 4 / 3).all()
    assert ((width - 0.5) / (height + 0.5) < 4 / 3).all()


def test_boxes_touch_each_edge() -> None:
    found = boxes((3, 4), min_area=0.5, max_area=0.5, max_aspect=1)  # 2 x 2
    assert {tuple(box) for box in found} == {(i, j, 2, 2) for i in range(2) for j in range(3)}


def test_after_ten_draws_that_do_not_fit_the_box_is_in_the_middle() -> None:
    assert box((10, 1000), min_area=0.5) == Box(0, 493, 10, 13)
    assert box((1000, 10), min_area=0.5) == Box(493, 0, 13, 10)
    assert box((1, 1)) == Box(0, 0, 1, 1)


def test_the_crop_is_the_box_resized() -> None:
    image = noise(20, 30, 3)
    row, column, height, width = box((20, 30))
    part = image[row : row + height, column : column + width]
    for method in ("bilinear", "bicubic"):
        np.testing.assert_array_equal(
            inception_crop(image, KEY, size=(7, 9), method=method),
            resize(part, (7, 9), method=method),
        )


def test_half_of_the_images_are_mirrored() -> None:
    image = noise(2, 5, 3)
    mirrored = 0
    for i in range(NUM_DRAWS):
        result = flip(image, random.fold(KEY, i))
        is_mirrored = not np.array_equal(result, image)
        assert np.array_equal(result, image[:, ::-1] if is_mirrored else image)
        mirrored += is_mirrored
    assert abs(mirrored - NUM_DRAWS / 2) < 3.3 * math.sqrt(NUM_DRAWS / 4)
    np.testing.assert_array_equal(flip(image, KEY, rate=0), image)
    np.testing.assert_array_equal(flip(image, KEY, rate=1), image[:, ::-1])


@pytest.mark.parametrize("size", [(4, 6), (3, 3), (9, 10)])
def test_the_middle_is_that_of_keras(size: tuple[int, int]) -> None:
    image = noise(9, 10, 3)
    expected = keras.layers.CenterCrop(*size)(image.astype("f"))
    np.testing.assert_array_equal(center_crop(image, size), np.asarray(expected))


def test_crops_out_of_range_are_refused() -> None:
    image = noise(9, 10, 3)
    with pytest.raises(ValueError, match=r"size=\(9, 11\) is larger than the image, \[9, 10, 3\]"):
        center_crop(image, (9, 11))
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=rf"rate={rate} is not in 0..1"):
            flip(image, KEY, rate=rate)
    for low, high in [(0, 1), (0.5, 0.4), (0.5, 1.5)]:
        with pytest.raises(ValueError, match=f"min_area={low} and max_area={high} are not 0 <"):
            inception_crop(image, KEY, size=(2, 2), min_area=low, max_area=high)
    with pytest.raises(ValueError, match=r"max_aspect=0.75 is not a finite number of at least 1"):
        inception_crop(image, KEY, size=(2, 2), max_aspect=0.75)


def test_a_padded_crop_moves_an_image_equally_often_to_every_place() -> None:
    image, padding = np.arange(1, 13, dtype=np.uint8).reshape(3, 4, 1), 2
    around = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    places = [(i, j) for i in range(5) for j in range(5)]
    crops = [around[i : i + 3, j : j + 4].tobytes() for i, j in places]
    found = [
        pad_and_crop(image, random.fold(KEY, i), padding=padding).tobytes()
        for i in range(NUM_DRAWS)
    ]
    counts = np.array([found.count(crop) for crop in crops])
    assert counts.sum() == NUM_DRAWS
    assert (abs(counts - NUM_DRAWS / 25) < 5 * math.sqrt(NUM_DRAWS / 25)).all()


def test_a_negative_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="padding=-1 is negative"):
        pad_and_crop(np.zeros([2, 2, 1], np.uint8), KEY, padding=-1)
