"""Warped images equal those of Keras's affine transforms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.config.lazy import keras
from lingo.ops.image import rotate, shear_x, shear_y, translate_x, translate_y
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
