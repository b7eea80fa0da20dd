"""Normalization, of each position or of groups of channels, against Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import GroupNorm, Layer
from lingo.layers.context import apply
from lingo.layers.initial import ZEROS
from lingo.layers.norm import LayerNorm, Norm, RmsNorm
from lingo.learner.state import initial_value

X = 3 + np.random.default_rng(0).normal(size=[2, 3, 4]).astype(np.float32)


@pytest.mark.parametrize(
    ("cls", "oracle", "rtol", "atol"),
    [
        (RmsNorm, keras.layers.RMSNormalization, 1e-5, 0),
        (LayerNorm, keras.layers.LayerNormalization, 1e-4, 1e-6),
    ],
)
def test_equals_that_of_keras(cls, oracle, rtol, atol, with_weights):
    layer, weights = with_weights(cls.params(dim=4, epsilon=1e-3).build())
    expected = oracle(epsilon=1e-3)
    expected.build(X.shape)
    expected.set_weights([weights[name] for name in ("scale", "bias") if name in weights])
    np.testing.assert_allclose(apply(layer, weights, X)[0], expected(X), rtol=rtol, atol=atol)


def test_rms_norm_without_scale_has_no_weight_and_brings_features_to_size_one() -> None:
    layer = RmsNorm.params(dim=4, use_scale=False).build()
    y, _ = apply(layer, {}, X)
    assert not layer.weights()
    np.testing.assert_allclose(np.mean(np.square(y), axis=-1), 1.0, rtol=1e-5)


def test_a_norm_that_adds_one_multiplies_by_one_more_than_its_scale(draw: Callable) -> None:
    layer = RmsNorm.params(dim=4, adds_one=True).build()
    weights = draw(layer)
    more = {"scale": 1 + weights["scale"]}
    expected, _ = apply(RmsNorm.params(dim=4).build(), more, X)
    np.testing.assert_allclose(apply(layer, weights, X)[0], expected, rtol=1e-6)
    (spec,) = layer.weights().values()
    assert spec.init is ZEROS


@pytest.mark.parametrize("cls", [RmsNorm, LayerNorm])
def test_a_row_of_zeros_stays_finite(cls: type[Norm], draw: Callable) -> None:
    layer = cls.params(dim=4).build()
    assert np.isfinite(apply(layer, draw(layer), tf.zeros([1, 4]))[0]).all()


IMAGES = 3 + 2 * np.random.default_rng(0).normal(size=[3, 4, 5, 6]).astype(np.float32)


def group_norm(**fields: Any) -> Layer:
    return GroupNorm.params(dim=6, **fields).build()


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("x", [IMAGES, IMAGES[:, 0]], ids=["image", "sequence"])
def test_a_group_norm_equals_that_of_keras_with_its_gradients(
    num_groups: int, x: Any, draw
) -> None:
    layer = group_norm(num_groups=num_groups, epsilon=1e-3)
    weights, x = draw(layer), tf.constant(x)
    oracle: Any = keras.layers.GroupNormalization(num_groups, epsilon=1e-3)
    oracle.build(x.shape)
    oracle.set_weights([weights["gamma"], weights["beta"]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, *weights.values()])
        y, expected = apply(layer, weights, x)[0], oracle(x)
        ours, theirs = tf.reduce_sum(tf.sin(y)), tf.reduce_sum(tf.sin(expected))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    for a, b in (
        (x, x),
        (weights["gamma"], oracle.gamma.value),
        (weights["beta"], oracle.beta.value),
    ):
        gradient = tape.gradient(theirs, b)
        np.testing.assert_allclose(tape.gradient(ours, a), gradient, rtol=1e-3, atol=1e-4)


def test_an_example_is_normalized_as_if_it_were_alone_in_training_too(draw) -> None:
    layer = group_norm(num_groups=3)
    weights = draw(layer)
    y = apply(layer, weights, IMAGES, call={"training": True})[0]
    for i in range(len(IMAGES)):
        np.testing.assert_allclose(
            y[i : i + 1], apply(layer, weights, IMAGES[i : i + 1])[0], rtol=1e-5
        )


@pytest.mark.parametrize(("zero_init", "start"), [(False, 1.0), (True, 0.0)])
def test_gamma_can_start_at_zero(zero_init: bool, start: float) -> None:
    spec = group_norm(num_groups=2, zero_init=zero_init).weights()["gamma"]
    np.testing.assert_array_equal(initial_value(spec, 0), np.full(6, start))


@pytest.mark.parametrize(
    ("params", "x"),
    [
        (RmsNorm.params(dim=4), 1e4 + X),
        (LayerNorm.params(dim=4), 1e4 + X),
        (GroupNorm.params(dim=6, num_groups=2), 1000 + IMAGES),
    ],
)
def test_statistics_are_float32_while_the_result_is_bfloat16(params, x, draw):
    layer = params.copy().set(dtype="bfloat16").build()
    small = tf.cast(x, tf.bfloat16)  # squares differ by less than bfloat16 resolves
    y, _ = apply(layer, draw(layer), small)
    exact = apply(params.build(), draw(layer), tf.cast(small, tf.float32))[0]
    assert y.dtype == tf.bfloat16
    np.testing.assert_array_equal(y, tf.cast(exact, tf.bfloat16))


FRAMES = np.random.default_rng(1).normal(1.0, 2.0, [2, 5, 6]).astype(np.float32)


def test_a_mask_leaves_padding_out_of_the_statistics_of_groups(draw) -> None:
    layer = group_norm(num_groups=3)
    weights, mask = draw(layer), np.arange(5) < np.array([[3], [5]])
    y = apply(layer, weights, FRAMES, mask=mask)[0]
    alone = apply(layer, weights, FRAMES[:1, :3])[0]
    np.testing.assert_allclose(y[:1, :3], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y[1:], apply(layer, weights, FRAMES[1:])[0], rtol=1e-5, atol=1e-6)


def test_cumulative_statistics_are_those_of_the_positions_so_far(draw) -> None:
    layer, weights = group_norm(num_groups=3, is_cumulative=True), draw(group_norm(num_groups=3))
    y = apply(layer, weights, FRAMES)[0]
    for length in range(1, 6):
        whole = apply(group_norm(num_groups=3), weights, FRAMES[:, :length])[0]
        np.testing.assert_allclose(y[:, length - 1], whole[:, -1], rtol=1e-4, atol=1e-5)


def test_cumulative_statistics_of_images_are_refused(draw) -> None:
    layer = group_norm(num_groups=3, is_cumulative=True)
    with pytest.raises(ParamError, match=r"is_cumulative=True is for sequences \[B, T, C\]"):
        apply(layer, draw(layer), IMAGES)
