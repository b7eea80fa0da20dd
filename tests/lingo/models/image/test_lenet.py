"""LeNet-5: Lingvo's number of weights, and a whole network against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers import Chain, Layer
from lingo.layers.context import apply
from lingo.models import ConvPool
from lingo.models.image.lenet import lenet5


def model(**fields: Any) -> Layer:
    return Chain.params(layers=lenet5(num_classes=10, **fields)).build()


def test_it_has_as_many_weights_as_lingvos() -> None:
    assert sum(spec.size for spec in model().weights().values()) == 763_810


def convolve(x: Any, w: Any) -> np.ndarray:
    """Zeros around the images x [B, H, W, C], windows w [5, 5, C, F]."""
    padded = np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
    return np.einsum("bhwcij,ijcf->bhwf", windows, w)


def largest(x: Any) -> np.ndarray:
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def test_it_computes_its_formula(draw, traced_flops) -> None:
    layer = model(image_shape=(8, 12, 2))
    images = np.random.default_rng(0).normal(size=[3, 8, 12, 2]).astype(np.float32)
    drawn = draw(layer)
    w = {name: value.numpy().astype(float) for name, value in drawn.items()}
    x = largest(np.maximum(convolve(images, w["layers/0/conv/w"]), 0))
    x = largest(np.maximum(convolve(x, w["layers/1/conv/w"]), 0))
    hidden = x.reshape(3, -1) @ w["layers/2/conv/w"].reshape(-1, 300) + w["layers/2/conv/b"]
    expected = np.maximum(hidden, 0) @ w["layers/3/linear/w"] + w["layers/3/linear/b"]
    found = apply(layer, drawn, images)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert layer.output_shape(images.shape) == tuple(found.shape) == (3, 10)
    assert layer.flops(images.shape) == traced_flops(layer, images)


def test_a_dropout_rate_is_a_probability() -> None:
    with pytest.raises(ParamError, match=r"dropout_rate=1.0 is not in \[0, 1\)"):
        ConvPool.params(dim=1, output_dim=1, dropout_rate=1.0).build()
