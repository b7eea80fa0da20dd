"""Levels change as by Pillow's `ImageOps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from lingo.ops.image import autocontrast, equalize, invert, posterize, solarize, solarize_add
from tests.lingo.ops.image.images import as_float, noise, scene

ONE_LEVEL = np.full([4, 5, 3], 77, np.uint8)
TWO_LEVELS = np.where(noise(20, 30, 3) < 100, 9, 200).astype(np.uint8)
RARE = np.where(np.arange(600).reshape(20, 30, 1) < 254, 7, 60).astype(np.uint8)
IMAGES = {
    "noise": noise(40, 60, 3),
    "dull": noise(40, 60, 3) // 5 + 31,
    "scene": scene(20, 30, 3),
    "grey": scene(20, 30, 1),
    "one level": ONE_LEVEL,
    "two levels": TWO_LEVELS,
    "a rare level": RARE,
}


def by_pillow(image: np.ndarray, change: Callable[..., Image.Image], *args: Any) -> np.ndarray:
    """Returns what a function of pictures makes of an image of 1 or 3 channels."""
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    return np.asarray(change(picture, *args)).reshape(image.shape)


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_levels_are_those_of_pillow(image: np.ndarray) -> None:
    def same(result: np.ndarray, change: Callable[..., Image.Image], *args: Any) -> None:
        np.testing.assert_array_equal(result, by_pillow(image, change, *args))

    same(autocontrast(image), ImageOps.autocontrast)
    same(equalize(image), ImageOps.equalize)
    same(invert(image), ImageOps.invert)
    for bits in (1, 3, 8):
        same(posterize(image, bits), ImageOps.posterize, bits)
    for threshold in (0, 60, 128, 256):
        same(solarize(image, threshold), ImageOps.solarize, threshold)
    assert not posterize(image, 0).any()


def test_numbers_are_added_below_the_threshold() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for addition, threshold in [(0, 128), (110, 128), (-50, 100), (200, 256)]:
        expected = [min(max(v + addition, 0), 255) if v < threshold else v for v in range(256)]
        result = solarize_add(levels, addition, threshold)
        np.testing.assert_array_equal(result.ravel(), expected)


def test_an_equalized_image_has_all_levels_about_equally_often() -> None:
    dull = (np.square(noise(64, 64, 1) / 255) * 100 + 50).astype(np.uint8)
    assert np.histogram(dull, bins=4, range=(0, 256))[0].tolist()[3] == 0
    counts = np.histogram(equalize(dull), bins=4, range=(0, 256))[0]
    largest = np.bincount(dull.ravel()).max()  # a level is never divided
    np.testing.assert_allclose(counts, 64 * 64 / 4, atol=largest)


def test_numbers_out_of_range_are_refused() -> None:
    image = noise(2, 2, 3)
    for bits in (-1, 9, 2.5):
        with pytest.raises(ValueError, match=rf"bits={bits} is not an int in 0..8"):
            posterize(image, bits)  # pyright: ignore[reportArgumentType]
    for threshold in (-1, 257):
        with pytest.raises(ValueError, match=rf"threshold={threshold} is not an int in 0..256"):
            solarize(image, threshold)
        with pytest.raises(ValueError, match=rf"threshold={threshold} is not an int in 0..256"):
            solarize_add(image, 3, threshold)
    with pytest.raises(ValueError, match=r"addition=256 is not an int in -255..255"):
        solarize_add(image, 256)


@pytest.mark.parametrize("change", [autocontrast, equalize, invert])
def test_floats_have_no_levels(change: Callable[[np.ndarray], np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"256 levels of uint8 images, but this one is float32:"):
        change(as_float(noise(2, 2, 3)))
