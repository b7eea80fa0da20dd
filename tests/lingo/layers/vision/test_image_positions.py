"""Positions of patches: known values, a formula one number at a time, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import LearnedImagePositions, SinusoidImagePositions
from lingo.layers.context import apply


def test_the_table_of_vit_s_16_has_its_known_values() -> None:
    table = SinusoidImagePositions.params(dim=384, grid=(14, 14)).build().table()
    assert table.shape == (196, 384)
    np.testing.assert_allclose(np.sum(np.square(table, dtype=float), axis=1), 192, rtol=1e-6)
    assert table[1, 0] == pytest.approx(0.8414709848, abs=1e-7)  # sin(1): the second column


def test_quarters_are_sines_and_cosines_of_the_column_and_of_the_row() -> None:
    layer = SinusoidImagePositions.params(dim=12, grid=(2, 3)).build()
    patches = np.random.default_rng(0).normal(size=[2, 6, 12]).astype(np.float32)
    added = apply(layer, {}, patches)[0] - patches
    for t in range(6):
        y, x = divmod(t, 3)
        w = [10_000.0 ** (-i / 2) for i in range(3)]
        row = [f(place * v) for place in (x, y) for f in (math.sin, math.cos) for v in w]
        np.testing.assert_allclose(added[0, t], row, atol=1e-6)
    np.testing.assert_allclose(added[0], added[1], atol=1e-6)
    assert layer.output_shape(patches.shape) == patches.shape
    assert not layer.weights()


def test_learned_vectors_are_added_to_each_image(draw) -> None:
    layer = LearnedImagePositions.params(dim=5, grid=(2, 3)).build()
    weights, patches = draw(layer), np.ones([2, 6, 5], np.float32)
    assert {name: spec.shape for name, spec in layer.weights().items()} == {"vectors": (6, 5)}
    np.testing.assert_allclose(apply(layer, weights, patches)[0], patches + weights["vectors"])


def test_another_number_of_patches_is_refused() -> None:
    layer = SinusoidImagePositions.params(dim=8, grid=(2, 3)).build()
    with pytest.raises(ParamError, match=r"7 patches, but grid=\(2, 3\) has 6"):
        apply(layer, {}, np.ones([2, 7, 8], np.float32))
