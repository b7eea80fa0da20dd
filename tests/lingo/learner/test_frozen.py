"""Layers whose weights are frozen stay what they are: normalizations keep their statistics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers import BatchNorm, Chain, Keras, Remat, Repeat, context
from lingo.layers.vision.image_head import ImageHead
from lingo.learner.state import Learner, TrainState, initial_state, load_arrays
from lingo.learner.step import train_step
from lingo.optim import ByPath, Frozen, Sgd
from tasks.image.task import ImageClassification

SHAPE = (4, 4, 3)
NORM = BatchNorm.params(dim=3)


def keras_norm() -> Any:
    return keras.Sequential([keras.Input(SHAPE), keras.layers.BatchNormalization()])


def learner(body: Params, frozen: str) -> Learner:
    """Returns a network whose weights of a pattern are frozen."""
    model = Chain.params(layers=[body, ImageHead.params(dim=3, num_classes=2)])
    task = ImageClassification.params(model=model, num_classes=2, image_shape=SHAPE)
    groups = {frozen: Frozen, f"(?!{frozen}).*": Sgd}
    return Learner(task.build(), ByPath.params(learning_rate=0.1, groups=groups).build())


def after_a_step(one: Learner) -> tuple[TrainState, TrainState, float]:
    """Returns the states before and after a step on images far from what averages say; its loss."""
    draw = np.random.default_rng(0)
    batch = {
        "images": tf.constant(draw.normal(5.0, 3.0, [4, *SHAPE]), tf.float32),
        "labels": tf.constant([0, 1, 1, 0]),
        "weights": tf.ones([4]),
        "rows": tf.range(4),
    }
    before = load_arrays(initial_state(one))
    step = tf.function(lambda state: train_step(one, state, batch), autograph=False)
    after, report = step(tf.nest.map_structure(tf.constant, before))
    return before, after, float(report["scalars"]["loss/total"])


BODIES = {
    "alone": NORM,
    "rematerialized": Remat.params(layer=NORM.copy()),
    "scanned": Repeat.params(layer=NORM.copy(), num_layers=2),
    "of keras": Keras.params(factory=keras_norm),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_frozen_normalization_keeps_its_statistics_and_computes_with_them(body: Params) -> None:
    before, after, loss = after_a_step(learner(body, "model/layers/0/.*"))
    assert before.state
    for name, value in before.state.items():
        np.testing.assert_array_equal(after.state[name], value, err_msg=name)
    _, moved, other = after_a_step(learner(body, "model/layers/1/.*"))
    assert all(np.abs(moved.state[k] - v).max() > 0.01 for k, v in before.state.items())
    assert abs(other - loss) > 0.01


def test_its_output_in_training_is_what_it_computes_elsewhere() -> None:
    layer = NORM.build()
    weights = {"gamma": tf.constant([1.0, 2.0, 3.0]), "beta": tf.constant([0.0, 1.0, 2.0])}
    state = {"moving_mean": tf.fill([3], 4.0), "moving_mean_square": tf.fill([3], 20.0)}
    x = np.random.default_rng(0).normal(size=[2, *SHAPE]).astype(np.float32)
    call = {"state": state, "training": True, "frozen_weights": {"gamma", "beta"}}
    y, sides = context.apply(layer, weights, x, call=call)
    elsewhere, _ = context.apply(layer, weights, x, call={"state": state})
    np.testing.assert_array_equal(y, elsewhere)
    assert sides.batch_statistics == {}


def test_one_that_adapts_moves_all_the_same() -> None:
    before, after, _ = after_a_step(
        learner(NORM.copy().set(adapts_if_frozen=True), "model/layers/0/.*")
    )
    assert all(np.abs(after.state[k] - v).max() > 0.01 for k, v in before.state.items())


def test_one_with_a_trained_beta_is_not_frozen() -> None:
    before, after, _ = after_a_step(learner(NORM, "model/layers/0/gamma"))
    assert all(np.abs(after.state[k] - v).max() > 0.01 for k, v in before.state.items())
