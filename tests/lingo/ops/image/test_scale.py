"""Resized images equal those of Keras."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import keras
from lingo.ops.image import resize, resize_short_side
from tests.lingo.ops.image.images import as_float, noise

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
