"""A PNG file, read back by TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.trainer.summaries.png import png, png_of_colours


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 7)])
@pytest.mark.parametrize("num_colours", [1, 3, 256])
def test_every_pixel_is_read_in_its_colour(shape: tuple[int, int], num_colours: int) -> None:
    draw = np.random.default_rng(0)
    colours = draw.integers(0, 256, (num_colours, 3)).astype(np.uint8)
    pixels = draw.integers(0, num_colours, shape).astype(np.uint8)
    found = tf.io.decode_png(png(pixels, colours), channels=3).numpy()
    np.testing.assert_array_equal(found, colours[pixels])


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 5, 3), (40, 7, 3)])
def test_every_pixel_is_read_as_it_was(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = tf.io.decode_png(png_of_colours(pixels), channels=3).numpy()
    np.testing.assert_array_equal(found, pixels)
