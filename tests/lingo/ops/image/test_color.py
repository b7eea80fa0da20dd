"""Colours change as those of Pillow's enhancers, hues as in Python's `colorsys`."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from lingo.ops import random
from lingo.ops.image import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    color_jitter,
)
from tests.lingo.ops.image.images import as_float, distance_to_uniform, noise, scene

KEY = random.root_key(6)
JITTER = random.text_hash("color_jitter")
CHANGES = [
    (adjust_brightness, ImageEnhance.Brightness),
    (adjust_contrast, ImageEnhance.Contrast),
    (adjust_saturation, ImageEnhance.Color),
    (adjust_sharpness, ImageEnhance.Sharpness),
]


@pytest.mark.parametrize(("change", "enhancer"), CHANGES)
@pytest.mark.parametrize(
    "image", [noise(20, 30, 3), scene(20, 30, 3), scene(20, 30, 1), noise(2, 5, 3)]
)
def test_pixels_are_those_of_pillow(
    change: Callable, enhancer: Callable, image: np.ndarray
) -> None:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    for factor in (0.0, 0.3, 0.99, 1.0, 1.7, 6.0):
        expected = np.asarray(enhancer(picture).enhance(factor)).reshape(image.shape)
        np.testing.assert_array_equal(change(image, factor), expected)
        floats = change(as_float(image), factor)
        # Pillow rounds twice: the other image, and the blend
        np.testing.assert_allclose(255 * floats, expected, atol=1 + max(1, abs(1 - factor)))


def test_hues_turn_as_those_of_colorsys() -> None:
    floats = as_float(np.concatenate([noise(12, 12, 3), scene(12, 12, 3)]))
    floats[0, :4] = [[1, 1, 1], [0, 0, 0], [0.5, 0.5, 0.5], [1, 0, 0]]
    for shift in (-0.5, -0.1, 0.0, 0.25, 1 / 3):

        def turn(pixel: np.ndarray, shift: float = shift) -> tuple[float, float, float]:
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            return colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)

        expected = np.apply_along_axis(turn, 2, floats)
        np.testing.assert_allclose(adjust_hue(floats, shift), expected, atol=1e-6)
        image = np.rint(255 * floats).astype(np.uint8)
        np.testing.assert_allclose(adjust_hue(image, shift), 255 * expected, atol=0.501)


def test_a_grey_image_has_no_colors_to_change() -> None:
    for image in (noise(4, 5, 1), np.repeat(noise(4, 5, 1), 3, axis=2)):
        np.testing.assert_array_equal(adjust_hue(image, 0.3), image)
        np.testing.assert_array_equal(adjust_saturation(image, 1.9), image)


def test_factors_of_the_jitter_are_uniform() -> None:
    white = np.ones([1, 1, 1], np.float32)
    one = {"contrast": 0, "saturation": 0, "hue": 0}
    keys = [random.fold(KEY, i) for i in range(1000)]
    dark = np.array([color_jitter(white / 2, key, brightness=0.4, **one) for key in keys])
    assert distance_to_uniform((2 * dark.ravel() - 0.6) / 0.8) < 1.95
    red = np.float32([[[1, 0, 0]]])
    none = {"brightness": 0, "contrast": 0, "saturation": 0}
    turned = np.array([color_jitter(red, key, hue=0.1, **none)[0, 0] for key in keys])
    hues = (turned[:, 1] - turned[:, 2]) / 6  # the part of the circle, as red stays the highest
    assert distance_to_uniform((hues + 0.1) / 0.2) < 1.95


def test_all_orders_of_draws_are_equally_likely() -> None:
    """That they are the orders of the changes, the next test shows."""
    keys = [random.fold(random.fold(KEY, i), JITTER) for i in range(2400)]
    ranks = [np.argsort(random.uniform(key, 2, 4)[0]) for key in keys]
    counts = np.unique(ranks, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 100) ** 2 / 100).sum() < 50  # chi-squared of 23: 49.7 for one of a thousand


def test_the_jitter_is_the_four_changes_in_the_order_of_its_draws() -> None:
    image = scene(6, 7, 3)
    results = set()
    for i in range(20):
        key = random.fold(KEY, i)
        ranks, steps = random.uniform(random.fold(key, JITTER), 2, 4).astype(float)
        expected = image
        for j in np.argsort(ranks):
            moved = 2 * steps[j] - 1
            expected = [
                lambda x, m=moved: adjust_brightness(x, 1 + 0.4 * m),
                lambda x, m=moved: adjust_contrast(x, 1 + 0.4 * m),
                lambda x, m=moved: adjust_saturation(x, 1 + 0.4 * m),
                lambda x, m=moved: adjust_hue(x, 0.1 * m),
            ][j](expected)
        result = color_jitter(image, key)
        np.testing.assert_array_equal(result, expected)
        results.add(result.tobytes())
    assert len(results) == 20


def test_changes_out_of_range_are_refused() -> None:
    image = noise(2, 2, 3)
    for factor in (-0.1, math.nan, math.inf):
        with pytest.raises(
            ValueError, match=f"factor={factor} is not a finite number of at least 0"
        ):
            adjust_brightness(image, factor)
    with pytest.raises(ValueError, match=r"saturation=1.5 is not in 0..1"):
        color_jitter(image, KEY, saturation=1.5)
    with pytest.raises(ValueError, match=r"hue=0.6 is not in 0..0.5"):
        color_jitter(image, KEY, hue=0.6)
    for change in (adjust_contrast, adjust_saturation, adjust_hue):
        with pytest.raises(
            ValueError, match=r"colours has 1 or 3 channels; this one is \[2, 2, 4\]"
        ):
            change(noise(2, 2, 4), 0.5)
    with pytest.raises(ValueError, match="colours has 1 or 3 channels"):
        color_jitter(noise(2, 2, 4), KEY)
