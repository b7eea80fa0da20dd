"""Layers of volumes against slow NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import context
from lingo.layers.vision.conv3d import Conv3D, EnlargingConv3D, MaxPool3D

VOLUME = np.random.default_rng(0).normal(size=[2, 5, 4, 3, 2]).astype("f")


def call(layer, x=VOLUME, **values):
    return context.apply(layer, values, tf.constant(x))[0].numpy()


def draw(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("f")


def windows(x, kernel, stride, before):
    """Returns what each window of padding SAME covers: {place: [B, kd, kh, kw, C]}."""
    padded = np.pad(x, [(0, 0), *[(n, 9) for n in before], (0, 0)])
    counts = [-(-size // stride) for size in x.shape[1:-1]]
    found = {}
    for place in itertools.product(*map(range, counts)):
        cuts = [slice(i * stride, i * stride + k) for i, k in zip(place, kernel, strict=True)]
        found[place] = padded[:, *cuts]
    return found


# a depth of 5 needs 2 zeros for windows of 3, one of them before; the others need none
@pytest.mark.parametrize(("kernel", "before"), [((3, 2, 1), (1, 0, 0)), ((1, 1, 1), (0, 0, 0))])
def test_a_convolution_sums_over_windows(kernel, before):
    w, b = draw(*kernel, 2, 4), draw(4)
    params = Conv3D.params(dim=2, output_dim=4, kernel=kernel, stride=2, use_bias=True)
    y = call(params.build(), w=w, b=b)
    for place, window in windows(VOLUME, kernel, 2, before).items():
        expected = np.einsum("bijkc,ijkcf->bf", window, w) + b
        np.testing.assert_allclose(y[:, *place], expected, rtol=1e-4, atol=1e-5)
    assert y.shape == params.build().output_shape(VOLUME.shape)


def test_an_enlarging_convolution_makes_a_window_of_each_position():
    w = draw(2, 2, 2, 2, 3)
    layer = EnlargingConv3D.params(dim=2, output_dim=3).build()
    y = call(layer, w=w)
    assert y.shape == layer.output_shape(VOLUME.shape) == (2, 10, 8, 6, 3)
    for d, h, v in itertools.product(range(10), range(8), range(6)):
        expected = VOLUME[:, d // 2, h // 2, v // 2] @ w[d % 2, h % 2, v % 2]
        np.testing.assert_allclose(y[:, d, h, v], expected, rtol=1e-4, atol=1e-5)


def test_a_pool_takes_the_maximum_of_what_lies_inside():
    layer = MaxPool3D.params().build()
    y = call(layer, VOLUME - 10)
    assert y.shape == layer.output_shape(VOLUME.shape) == (2, 3, 2, 2, 2)
    for d, h, v in itertools.product(range(3), range(2), range(2)):
        window = VOLUME[:, 2 * d : 2 * d + 2, 2 * h : 2 * h + 2, 2 * v : 2 * v + 2] - 10
        np.testing.assert_allclose(y[:, d, h, v], window.max(axis=(1, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Conv3D.params(dim=1, output_dim=1, stride=2, dilation=2), "one of the two has to be 1"),
        (EnlargingConv3D.params(dim=1, output_dim=1, stride=0), "stride=0 is not positive"),
        (MaxPool3D.params(window=0), "window=0 is not positive"),
    ],
)
def test_layers_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ParamError, match=message):
        params.build()
