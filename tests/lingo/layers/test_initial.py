"""Initial values: their distribution, and that any slice is drawn without the rest."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.layers import initial
from lingo.layers.vision.conv import Conv2D
from lingo.ops import random

KEY = random.fold(random.root_key(0), random.text_hash("layer/w"))
ALL = [
    initial.Constant.params(value=3.0),
    initial.Uniform.params(limit=0.1),
    initial.TruncatedNormal.params(stddev=0.1),
    initial.FanIn.params(),
    initial.Normal.params(),
    initial.He.params(),
    initial.Glorot.params(),
    initial.Glorot.params(distribution="normal", fan_out=9),
    initial.Orthogonal.params(),
]


@pytest.mark.parametrize("params", ALL)
@pytest.mark.parametrize(
    "index",
    [
        (slice(2, 5),),
        (slice(None), slice(1, 2), slice(0, 2)),
        (slice(5, 9), slice(None), slice(2, None)),
        (slice(4, 4),),
    ],
)
def test_a_slice_equals_that_of_the_whole(params: Params, index: tuple[slice, ...]) -> None:
    init = params.build()
    whole = init.draw(KEY, [6, 2, 3], fan_in=6)
    assert whole.shape == (6, 2, 3)
    assert whole.dtype == np.float32
    part = init.draw(KEY, [6, 2, 3], fan_in=6, index=index)
    np.testing.assert_array_equal(part, whole[index])


def test_a_number_has_no_axes() -> None:
    for params in ALL:
        assert params.build().draw(KEY, [], fan_in=1).shape == ()


def test_values_are_the_same_on_every_machine() -> None:
    values = initial.FAN_IN.draw(KEY, [4], fan_in=4)
    words = [3197255558, 3184869677, 1050890161, 3181036369]  # as first recorded
    np.testing.assert_array_equal(values.view(np.uint32), np.array(words, np.uint32))


@pytest.mark.parametrize(
    ("params", "stddev"),
    [
        (initial.TruncatedNormal.params(stddev=0.3), 0.3),
        (initial.FanIn.params(scale=2.0), math.sqrt(2 / 50)),
        (initial.Uniform.params(limit=0.3), 0.3 / math.sqrt(3)),
        (initial.Normal.params(stddev=0.3), 0.3),
        (initial.He.params(), math.sqrt(2 / 50)),
        (initial.Glorot.params(), math.sqrt(2 / 450)),
        (initial.Glorot.params(distribution="normal"), math.sqrt(2 / 450)),
    ],
)
def test_values_have_mean_zero_and_the_deviation_asked_for(params: Params, stddev: float) -> None:
    values = params.build().draw(KEY, [50, 400], fan_in=50)
    np.testing.assert_allclose(values.mean(), 0, atol=5 * stddev / math.sqrt(20_000))
    np.testing.assert_allclose(values.std(), stddev, rtol=0.03)


def test_truncated_normals_end_where_they_are_cut() -> None:
    values = initial.TruncatedNormal.params(stddev=1.0).build().draw(KEY, [20_000], fan_in=1)
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    cut_stddev = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2)))
    assert 0.99 * 2 / cut_stddev < np.abs(values).max() <= 2 / cut_stddev


def test_uniform_values_lie_within_the_limit() -> None:
    values = initial.Uniform.params(limit=0.5).build().draw(KEY, [1000], fan_in=1)
    assert -0.5 <= values.min() < -0.45
    assert 0.45 < values.max() <= 0.5


def test_names_draw_values_of_their_own() -> None:
    other = random.fold(random.root_key(0), random.text_hash("layer/b"))
    first, second = (initial.FAN_IN.draw(key, [50], fan_in=1) for key in (KEY, other))
    assert not np.isin(first, second).any()


def test_zeros_and_ones_are_what_they_say() -> None:
    np.testing.assert_array_equal(initial.ZEROS.draw(KEY, [2], fan_in=1), [0, 0])
    np.testing.assert_array_equal(initial.ONES.draw(KEY, [2], fan_in=1), [1, 1])


@pytest.mark.parametrize(
    ("shape", "fan_in", "matrix"),
    [
        ((8, 3), 8, (8, 3)),
        ((8, 5, 2), 8, (8, 10)),
        ((2, 4, 3), 8, (8, 3)),
        ((9, 4), 4, (9, 4)),  # a table of embeddings
    ],
)
def test_columns_or_rows_are_orthogonal(
    shape: tuple[int, ...], fan_in: int, matrix: tuple[int, int]
) -> None:
    w = initial.Orthogonal.params(gain=2.0).build().draw(KEY, shape, fan_in=fan_in).reshape(matrix)
    short = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
    np.testing.assert_allclose(short, 4 * np.eye(len(short)), atol=1e-6)


def test_orthogonal_values_are_the_same_on_every_machine() -> None:
    values = initial.Orthogonal.params().build().draw(KEY, [4, 2], fan_in=4)[0]
    words = [3204187123, 3198766537]  # as first recorded
    np.testing.assert_array_equal(values.view(np.uint32), np.array(words, np.uint32))


def test_a_kernel_has_the_variance_of_keras_glorot() -> None:
    """Its fan-out counts the window's positions, as Keras's does."""
    layer = Conv2D.params(dim=32, output_dim=64, kernel=(3, 3), init=initial.Glorot).build()
    spec = layer.weights()["w"]
    w = spec.init.draw(KEY, spec.shape, fan_in=spec.fan_in)
    keras_w = np.asarray(keras.initializers.GlorotUniform(seed=0)([3, 3, 32, 64]))
    np.testing.assert_allclose(np.abs(w).max(), np.abs(keras_w).max(), rtol=1e-3)


def test_identity_is_for_matrices() -> None:
    init = initial.Identity.params(gain=3.0).build()
    expected = 3 * np.eye(4, 2, dtype=np.float32)
    np.testing.assert_array_equal(init.draw(KEY, [4, 2], fan_in=4), expected)
    part = init.draw(KEY, [4, 2], fan_in=4, index=[slice(1, 3)])
    np.testing.assert_array_equal(part, expected[1:3])
    with pytest.raises(ParamError, match=r"for matrices, and a weight has the shape \[3, 4, 2\]"):
        init.draw(KEY, [3, 4, 2], fan_in=3)
