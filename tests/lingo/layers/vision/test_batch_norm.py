"""Batch normalization, against Keras and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers import BatchNorm, Layer
from lingo.layers.context import SideOutputs, apply
from lingo.layers.inputs import BatchRequirements
from lingo.learner.state import initial_value

X = 3 + 2 * np.random.default_rng(0).normal(size=[8, 4, 5, 3]).astype(np.float32)
DECAY, EPSILON = 0.9, 1e-3
TRAINING = {"training": True}


def batch_norm(**fields: Any) -> Layer:
    return BatchNorm.params(dim=3, decay=DECAY, epsilon=EPSILON, **fields).build()


def oracle(weights: dict[str, Any], **fields: Any) -> Any:
    """Returns Keras' layer with the same gamma and beta."""
    layer = keras.layers.BatchNormalization(momentum=DECAY, epsilon=EPSILON, **fields)
    layer.build(X.shape)
    layer.gamma.assign(weights["gamma"])
    layer.beta.assign(weights["beta"])
    return layer


def stepped(layer: Layer, *calls: SideOutputs) -> dict[str, np.ndarray]:
    """Returns the states after a first step of which these calls were the parts."""
    found = {}
    for name, spec in layer.states().items():
        total = sum(call.batch_statistics[name]["sum"].numpy() for call in calls)
        weight = sum(call.batch_statistics[name]["weight"].numpy() for call in calls)
        old = initial_value(spec, 0)
        found[name] = spec.decay * old + (1 - spec.decay) * total / weight
    return found


def test_in_training_it_equals_that_of_keras(with_weights) -> None:
    layer, weights = with_weights(batch_norm())
    y, _ = apply(layer, weights, X, call=TRAINING)
    expected = oracle(weights)(X, training=True)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_else_it_equals_that_of_keras_with_the_variance_of_its_moments(draw: Callable) -> None:
    layer = batch_norm()
    weights, keras_layer = draw(layer), oracle(draw(layer))
    mean, variance = np.array([3.0, -1.0, 0.5], "f"), np.array([4.0, 0.2, 1.0], "f")
    keras_layer.moving_mean.assign(mean)
    keras_layer.moving_variance.assign(variance)
    state = {"moving_mean": mean, "moving_mean_square": variance + mean**2}
    y, sides = apply(layer, weights, X, call={"state": state})
    np.testing.assert_allclose(y, keras_layer(X, training=False), rtol=1e-4, atol=1e-4)
    assert not sides.batch_statistics


def test_with_a_scale_it_adds_a_multiple_of_it(draw: Callable) -> None:
    layer = batch_norm()
    weights, state = draw(layer), {"moving_mean": np.array([3.0, -1.0, 0.5], "f")}
    state["moving_mean_square"] = np.array([4.0, 0.2, 1.0], "f") + state["moving_mean"] ** 2
    scale = np.array([0.01, 0.02, 0.005], "f")
    integers = np.round(X / scale)
    y, _ = apply(layer, weights, integers * scale, scale=scale, call={"state": state})
    factor = np.float64(weights["gamma"]) / np.sqrt([4 + EPSILON, 0.2 + EPSILON, 1 + EPSILON])
    offset = np.round((weights["beta"] / factor - state["moving_mean"]) / scale)
    np.testing.assert_allclose(y, (integers + offset) * scale * factor, rtol=1e-5, atol=1e-5)
    exact, _ = apply(layer, weights, integers * scale, call={"state": state})
    assert 1e-4 < np.abs(y - exact).max() < np.abs(scale * factor).max()


def test_moving_means_after_a_step_are_those_of_keras(with_weights) -> None:
    layer, weights = with_weights(batch_norm())
    mean, square = oracle(weights), oracle(weights, moving_mean_initializer="ones")
    mean(X, training=True)
    square(np.square(X), training=True)
    after = stepped(layer, apply(layer, weights, X, call=TRAINING)[1])
    np.testing.assert_allclose(after["moving_mean"], mean.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(after["moving_mean_square"], square.moving_mean, rtol=1e-5)


def test_with_moving_variances_it_keeps_and_uses_those_of_keras(with_weights) -> None:
    layer, weights = with_weights(batch_norm(moving_moment="variance"))
    keras_layer = oracle(weights)
    keras_layer(X, training=True)
    after = stepped(layer, apply(layer, weights, X, call=TRAINING)[1])
    assert {*after} == {"moving_mean", "moving_variance"}
    for name, value in after.items():
        np.testing.assert_allclose(value, getattr(keras_layer, name), rtol=1e-5)
    y, _ = apply(layer, weights, X, call={"state": after})
    np.testing.assert_allclose(y, keras_layer(X, training=False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_groups_leave_the_mean_of_their_variances(compiled: bool, with_weights) -> None:
    layer, weights = with_weights(batch_norm(moving_moment="variance", statistics_over=2))
    sides = apply(layer, weights, X, call=TRAINING | {"compiled": compiled})[1]
    variance = X.reshape(4, -1, 3).var(axis=1).mean(axis=0)
    expected = DECAY + (1 - DECAY) * variance
    np.testing.assert_allclose(stepped(layer, sides)["moving_variance"], expected, rtol=1e-5)


@pytest.mark.parametrize("statistics_over", [None, 1])
def test_parts_of_a_batch_leave_the_moving_statistics_of_the_whole(statistics_over, with_weights):
    layer, weights = with_weights(batch_norm(statistics_over=statistics_over))
    whole = stepped(layer, apply(layer, weights, X, call=TRAINING)[1])
    parts = [apply(layer, weights, x, call=TRAINING)[1] for x in np.split(X, [1, 3])]
    for name, value in stepped(layer, *parts).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6)


def test_groups_are_normalized_as_if_they_were_alone(draw: Callable) -> None:
    layer, alone = batch_norm(statistics_over=2), batch_norm()
    weights = draw(layer)
    y, sides = apply(layer, weights, X, call=TRAINING)
    for i in range(0, 8, 2):
        expected, _ = apply(alone, weights, X[i : i + 2], call=TRAINING)
        np.testing.assert_allclose(y[i : i + 2], expected, rtol=1e-5, atol=1e-6)
    assert sides.batch_statistics["moving_mean"]["weight"] == 8


def test_gradients_flow_through_the_statistics(draw: Callable) -> None:
    layer = batch_norm()
    weights, x, keras_layer = draw(layer), tf.constant(X), oracle(draw(layer))
    target = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, *weights.values()])
        ours = tf.reduce_sum(target * apply(layer, weights, x, call=TRAINING)[0])
        theirs = tf.reduce_sum(target * keras_layer(x, training=True))
    np.testing.assert_allclose(
        tape.gradient(ours, x), tape.gradient(theirs, x), rtol=1e-3, atol=1e-5
    )
    for name in ("gamma", "beta"):
        expected = tape.gradient(theirs, getattr(keras_layer, name).value)
        np.testing.assert_allclose(tape.gradient(ours, weights[name]), expected, rtol=1e-4)


def test_a_constant_channel_stays_finite_when_squares_round(draw: Callable) -> None:
    layer = batch_norm()
    value = np.float32(4097.3)
    state = {"moving_mean": np.full(3, value), "moving_mean_square": np.full(3, value * value) - 9}
    assert np.isfinite(apply(layer, draw(layer), X, call={"state": state})[0]).all()


def test_gamma_can_start_at_zero_so_that_a_branch_first_adds_nothing() -> None:
    spec = batch_norm(zero_init=True).weights()["gamma"]
    np.testing.assert_array_equal(initial_value(spec, 0), np.zeros(3))
    np.testing.assert_array_equal(initial_value(batch_norm().weights()["gamma"], 0), np.ones(3))


def test_statistics_are_float32_while_the_result_is_bfloat16(draw: Callable) -> None:
    layer = batch_norm(dtype="bfloat16")
    x = tf.cast(1e3 + X, tf.bfloat16)
    y, sides = apply(layer, draw(layer), x, call=TRAINING)
    exact = apply(batch_norm(), draw(layer), tf.cast(x, tf.float32), call=TRAINING)[0]
    assert y.dtype == tf.bfloat16
    assert sides.batch_statistics["moving_mean"]["sum"].dtype == tf.float32
    np.testing.assert_array_equal(y, tf.cast(exact, tf.bfloat16))


def test_rows_of_a_group_are_computed_together() -> None:
    assert batch_norm().batch_requirements() == BatchRequirements(1, 0)
    assert batch_norm(statistics_over=4).batch_requirements() == BatchRequirements(4, 4)
    assert batch_norm().output_shape([8, 4, 5, 3]) == (8, 4, 5, 3)


def test_a_group_that_does_not_divide_the_batch_is_refused(draw: Callable) -> None:
    layer = batch_norm(statistics_over=3)
    with pytest.raises(ParamError, match=r"statistics_over=3 does not divide the 8 examples"):
        apply(layer, draw(layer), X, call=TRAINING)


@pytest.mark.parametrize("shape", [(8, 4, 5, 3), (8, 3)])
@pytest.mark.parametrize("statistics_over", [None, 4, 1])
def test_one_operation_for_each_group_equals_the_formula(
    shape: tuple[int, ...], statistics_over: int | None, draw: Callable
) -> None:
    layer = batch_norm(statistics_over=statistics_over)
    weights, x = draw(layer), tf.random.stateless_normal(shape, [1, 2], 3.0, 2.0)
    target = tf.random.stateless_normal(shape, [3, 4])

    def results(*, compiled: bool) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, *weights.values()])
            y, sides = apply(layer, weights, x, call=TRAINING | {"compiled": compiled})
            total = tf.reduce_sum(target * y)
        return y, sides.batch_statistics, tape.gradient(total, [x, weights])

    tf.nest.map_structure(
        lambda kernel, formula: np.testing.assert_allclose(kernel, formula, rtol=1e-4, atol=1e-4),
        results(compiled=False),
        results(compiled=True),
    )


def test_a_batch_of_unknown_size_is_normalized_by_the_formula(draw: Callable) -> None:
    layer = batch_norm(statistics_over=2)
    weights = draw(layer)
    spec = tf.TensorSpec([None, *X.shape[1:]], tf.float32)
    graph = tf.function(lambda x: apply(layer, weights, x, call=TRAINING)[0], [spec])
    expected = apply(layer, weights, X, call=TRAINING)[0]
    np.testing.assert_allclose(graph(X), expected, rtol=1e-5, atol=1e-5)


# ---- statistics of some positions ----------------------------------------------------------------

FRAMES = X[:, :, 0]  # [8, 4, 3]
LENGTHS = np.array([4, 2, 1, 4, 3, 0, 2, 1])
MASK = np.arange(4) < LENGTHS[:, None]


def test_with_a_mask_statistics_are_those_of_its_positions_alone(draw: Callable) -> None:
    layer = batch_norm()
    weights = draw(layer)
    y, sides = apply(layer, weights, FRAMES, mask=MASK, call=TRAINING)
    alone, expected = apply(layer, weights, FRAMES[MASK], call=TRAINING)
    np.testing.assert_allclose(y.numpy()[MASK], alone, rtol=1e-5, atol=1e-6)
    after, wanted = stepped(layer, sides), stepped(layer, expected)
    for name, value in wanted.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5)
    other = np.where(MASK[..., None], FRAMES, 1e6).astype("f")
    changed, _ = apply(layer, weights, other, mask=MASK, call=TRAINING)
    np.testing.assert_array_equal(changed.numpy()[MASK], y.numpy()[MASK])


@pytest.mark.parametrize("sizes", [[2, 6], [2, 4, 2]])
def test_with_a_mask_parts_of_a_batch_leave_the_statistics_of_the_whole(
    sizes: list[int], draw: Callable
) -> None:
    layer = batch_norm(statistics_over=2)
    weights = draw(layer)
    y, sides = apply(layer, weights, FRAMES, mask=MASK, call=TRAINING)
    cuts = np.cumsum(sizes)[:-1]
    parts = [
        apply(layer, weights, x, mask=mask, call=TRAINING)
        for x, mask in zip(np.split(FRAMES, cuts), np.split(MASK, cuts), strict=True)
    ]
    np.testing.assert_allclose(tf.concat([part for part, _ in parts], 0), y, rtol=1e-5, atol=1e-6)
    whole = stepped(layer, sides)
    for name, value in stepped(layer, *(part for _, part in parts)).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6)


class Neighbours:
    """Replicas that are computed in turn: first to note what each sends, then with all of it."""

    def __init__(self) -> None:
        self.sent: list[tf.Tensor] = []
        self.is_complete = False

    def gather_neighbours(self, x: tf.Tensor, num: int) -> tf.Tensor:
        if self.is_complete:
            return tf.stack(self.sent)
        self.sent.append(x)
        return tf.stack([x] * num)


def test_with_a_mask_replicas_share_a_group_of_unequal_parts(draw: Callable) -> None:
    layer, replicas = batch_norm(statistics_over=8), Neighbours()
    weights = draw(layer)
    y, sides = apply(layer, weights, FRAMES, mask=MASK, call=TRAINING)

    def halves() -> list[Any]:
        call = TRAINING | {"replicas": replicas}
        pairs = zip(np.split(FRAMES, 2), np.split(MASK, 2), strict=True)
        return [apply(layer, weights, x, mask=mask, call=call) for x, mask in pairs]

    halves()
    replicas.is_complete = True
    parts = halves()
    np.testing.assert_allclose(tf.concat([part for part, _ in parts], 0), y, rtol=1e-5, atol=1e-6)
    whole = stepped(layer, sides)
    for name, value in stepped(layer, *(part for _, part in parts)).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-6)


def test_a_call_of_padding_alone_changes_no_statistic(draw: Callable) -> None:
    layer = batch_norm()
    y, sides = apply(layer, draw(layer), FRAMES, mask=np.zeros_like(MASK), call=TRAINING)
    assert np.isfinite(y).all()
    assert sides.batch_statistics["moving_mean"]["weight"] == 0
