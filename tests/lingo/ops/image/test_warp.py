"""Warped images equal those of Keras's affine transforms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.config.lazy import keras
from lingo.ops.image import (
    resize,
    resize_short_side,
    rotate,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)
from tests.lingo.ops.image.images import as_float, noise

IMAGES = [noise(20, 30, 3), noise(21, 20, 1), as_float(noise(20, 30, 3)), noise(9, 9, 2)]


def by_keras(image: np.ndarray, matrix: list[list[float]], offset: list[float]) -> np.ndarray:
    """Returns the image whose pixel with its middle at p is that at matrix @ p + offset.

    Keras counts from the middle of the first pixel.
    """
    inner = np.array(matrix) @ [0.5, 0.5] + offset - 0.5
    coefficients = np.array([*matrix[0], inner[0], *matrix[1], inner[1], 0, 0], np.float32)
    filled = 128 if image.dtype == np.uint8 else 128 / 255
    result = keras.ops.image.affine_transform(
        image.astype("f"), coefficients, "nearest", "constant", filled
    )
    return np.asarray(result).astype(image.dtype)


@pytest.mark.parametrize("image", IMAGES)
def test_pixels_are_those_of_keras(image: np.ndarray) -> None:
    for slope in (0.29, -0.29, 0.03):
        expected = by_keras(image, [[1, slope], [0, 1]], [0, 0])
        np.testing.assert_array_equal(shear_x(image, slope), expected)
        expected = by_keras(image, [[1, 0], [slope, 1]], [0, 0])
        np.testing.assert_array_equal(shear_y(image, slope), expected)
    for pixels in (-4, 0, 3.3, 100):
        expected = by_keras(image, [[1, 0], [0, 1]], [-round(pixels), 0])
        np.testing.assert_array_equal(translate_x(image, pixels), expected)
        expected = by_keras(image, [[1, 0], [0, 1]], [0, -round(pixels)])
        np.testing.assert_array_equal(translate_y(image, pixels), expected)
    middle = np.array([image.shape[1], image.shape[0]]) / 2
    for degrees in (29.7, -11.3, 123.4):
        turn = math.radians(degrees)
        matrix = [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
        expected = by_keras(image, matrix, list(middle - np.array(matrix) @ middle))
        is_clear = distance_to_edges(image, matrix) > 1e-3  # Pillow counts in 2**-16
        np.testing.assert_array_equal(rotate(image, degrees)[is_clear], expected[is_clear])
        assert is_clear.mean() > 0.98


def distance_to_edges(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
    """Returns how far the places of a rotation are from the nearest edge of a pixel, [H, W]."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width] + 0.5 - np.array([height, width])[:, None, None] / 2
    places = np.einsum("ij,jyx->iyx", matrix, [x, y])
    places += np.array([width, height])[:, None, None] / 2
    return np.abs(places - np.rint(places)).min(axis=0)


def test_a_quarter_turn_only_moves_pixels() -> None:
    image = noise(7, 7, 3)
    np.testing.assert_array_equal(rotate(image, 90), np.rot90(image))
    np.testing.assert_array_equal(rotate(image, 0), image)


def test_pixels_from_outside_are_grey() -> None:
    assert (translate_x(noise(4, 6, 3), 5)[:, :5] == 128).all()
    np.testing.assert_array_equal(
        translate_y(as_float(noise(4, 6, 3)), 9), np.full([4, 6, 3], 128 / 255, "f")
    )


SIZES = [(5, 7), (31, 9), (20, 30), (64, 50)]  # both smaller, one, none changed, both larger


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_pixels_are_those_of_keras_with_antialias(method: str) -> None:
    image = noise(20, 30, 3)
    for size in SIZES:
        floats = as_float(image)
        expected = keras.ops.image.resize(floats, size, interpolation=method, antialias=True)
        expected = np.clip(np.asarray(expected), 0, 1)
        # TensorFlow's places on an axis of 30 are float32, 1.8e-6 off, for four pixels each way
        np.testing.assert_allclose(resize(floats, size, method=method), expected, atol=5e-6)
        # of uint8, Pillow rounds and clips in each direction: nothing is clipped in this image
        dull = image // 2 + 64
        expected = keras.ops.image.resize(
            dull.astype("f"), size, interpolation=method, antialias=True
        )
        rounded = resize(dull, size, method=method).astype(np.float32)
        np.testing.assert_allclose(rounded, np.asarray(expected), atol=1.2)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_each_channel_is_resized_by_itself(channels: int) -> None:
    image = noise(9, 8, channels)
    result = resize(image, (4, 5))
    for c in range(channels):
        np.testing.assert_array_equal(result[..., c], resize(image[..., c : c + 1], (4, 5))[..., 0])


def test_the_mean_of_an_image_survives_shrinking_by_a_whole_factor() -> None:
    image = as_float(noise(64, 64, 1))
    np.testing.assert_allclose(resize(image, (8, 8)).mean(), image.mean(), atol=5e-3)
    stripes = np.tile(np.float32([0, 1]), (64, 32))[..., None]
    assert np.ptp(resize(stripes, (64, 16))[:, 2:-2]) < 1e-6  # no aliases


@pytest.mark.parametrize(
    ("shape", "result"), [((30, 40), (15, 20)), ((40, 30), (20, 15)), ((7, 33), (15, 71))]
)
def test_the_short_side_gets_its_length(shape: tuple[int, int], result: tuple[int, int]) -> None:
    image = noise(*shape, 3)
    np.testing.assert_array_equal(resize_short_side(image, 15), resize(image, result))


def test_other_methods_and_sizes_are_refused() -> None:
    image = noise(4, 4, 1)
    with pytest.raises(ValueError, match="method='area' is none of bilinear, bicubic"):
        resize(image, (2, 2), method="area")  # pyright: ignore[reportArgumentType]
    for size in [(0, 2), (2, 2, 1), 4, (2.0, 2)]:
        with pytest.raises(ValueError, match=r"is not \(height, width\) in pixels, at least 1"):
            resize(image, size)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"size=\(-1, -1\) is not \(height, width\)"):
        resize_short_side(image, -1)
