"""State: one checkpoint for separate and stacked layers, with nothing in it that nobody uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.layers.layer import Layer
from lingo.layers.repeat import Repeat
from lingo.layers.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.lazy import tf
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.sgd import Sgd
from lingo.train.state import (
    Learner,
    TrainState,
    from_named,
    initial_state,
    named,
    named_shapes,
    structure,
)
from lingo.train.step import train_step
from lingo.train.task import Task

B, D = 4, 3


class Centered(Layer):
    """A linear layer that takes off the moving mean of its inputs."""

    def setup(self) -> None:
        self.w = self.weight("w", [D, D], axes=(None, None))
        self.mean = self.state("mean", [D], decay=0.5)

    def __call__(self, x: Any) -> Any:
        self.moment("mean", tf.reduce_sum(x, 0), tf.constant(x.shape[0]))
        self.side_loss("size", tf.reduce_sum(x * x))
        self.side_metric("level", {"sum": tf.reduce_sum(x), "weight": tf.constant(1.0)})
        return (x - self.mean) @ self.w


class Regression(Task):
    """Squares of what the model makes of `x`."""

    model: Stack  # the layers

    def setup(self) -> None:
        self.model = self.p.model.build()

    def loss(self, batch: Any) -> Any:
        return {"square": tf.reduce_sum(self.model(batch["x"]) ** 2)}


SEPARATE = Stack.params(layer=Centered.params(), num_layers=4)
STACKED = [
    Repeat.params(layer=Centered.params(), num_layers=4),
    Repeat.params(layer=[Centered.params(), Remat.params(layer=Centered.params())], num_layers=4),
]
ADAM = Adam.params(learning_rate=0.1, ema_decay=0.5)
GROUPS = ByPath.params(
    learning_rate=0.1,
    groups={
        "model/layers/0/.*": Frozen,
        "model/layers/1/.*": Adam,
        "model/layers/[23]/.*": Sgd.params(momentum=0.5),
    },
)
over_optimizers = pytest.mark.parametrize("optimizer", [ADAM, GROUPS], ids=["Adam", "ByPath"])
over_stacks = pytest.mark.parametrize("stacked", STACKED, ids=["Repeat", "pattern"])


def learner(model: Params, optimizer: Params = ADAM, **kwargs: int) -> Learner:
    task = Regression.params(model=model.copy())
    return Learner(task.build(), optimizer.copy().build(), seed=3, **kwargs)


def taken_apart(learner: Learner, state: TrainState) -> dict[str, np.ndarray]:
    pairs = list(named(learner, tf.nest.map_structure(np.asarray, state)))
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def numbers(learner: Learner) -> TrainState:
    """Returns a state in which no two elements are the same."""
    draw = np.random.default_rng(0)
    return structure(learner, lambda shape: draw.normal(size=shape).astype(np.float32))


def assert_equal(a: Any, b: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


@over_optimizers
@over_stacks
def test_a_checkpoint_of_stacked_layers_is_one_of_separate_layers_and_back(
    stacked: Params, optimizer: Params
) -> None:
    one, other = learner(SEPARATE, optimizer), learner(stacked, optimizer)
    saved = taken_apart(one, numbers(one))
    restored = from_named(other, 7, saved)
    assert restored.step == 7
    assert_equal(taken_apart(other, restored), saved)
    assert_equal(taken_apart(one, from_named(one, 7, taken_apart(other, restored))), saved)


@over_optimizers
@over_stacks
def test_names_and_shapes_are_known_without_values(stacked: Params, optimizer: Params) -> None:
    shapes = named_shapes(learner(SEPARATE, optimizer))
    assert named_shapes(learner(stacked, optimizer)) == shapes
    one = learner(stacked, optimizer)
    assert {k: v.shape for k, v in taken_apart(one, numbers(one)).items()} == shapes


@over_optimizers
@over_stacks
def test_initial_values_are_those_of_separate_layers(stacked: Params, optimizer: Params) -> None:
    one, other = learner(SEPARATE, optimizer), learner(stacked, optimizer)
    values = taken_apart(one, initial_state(one))
    assert_equal(taken_apart(other, initial_state(other)), values)
    assert not np.array_equal(
        values["weights/model/layers/0/w"], values["weights/model/layers/1/w"]
    )


def test_slots_are_saved_for_the_layers_that_use_them() -> None:
    for model in (SEPARATE, STACKED[0]):
        names = named_shapes(learner(model, GROUPS))
        assert sorted(name for name in names if name.startswith("slots/")) == [
            "slots/m/model/layers/1/w",
            "slots/momentum/model/layers/2/w",
            "slots/momentum/model/layers/3/w",
            "slots/v/model/layers/1/w",
        ]


def test_slots_that_are_not_saved_come_back_as_they_began() -> None:
    one = learner(STACKED[0], GROUPS)
    restored = from_named(one, 0, taken_apart(one, numbers(one)))
    momentum = restored.slots["model/layers/[0:4]/w"]["momentum"]
    np.testing.assert_array_equal(momentum[:2], np.zeros((2, D, D)))


def test_the_moving_average_begins_with_the_weights() -> None:
    one = learner(STACKED[0])
    state = initial_state(one)
    for where, weight in state.weights.items():
        np.testing.assert_array_equal(state.slots[where]["ema"], weight)
    assert "slots/ema/model/layers/3/w" in named_shapes(one)


def test_another_seed_gives_other_weights() -> None:
    one = learner(SEPARATE)
    other = one._replace(seed=4)
    where = "model/layers/0/w"
    assert (initial_state(one).weights[where] != initial_state(other).weights[where]).any()


@over_stacks
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_step_leaves_the_state_and_report_of_separate_layers(
    stacked: Params, accumulation_steps: int
) -> None:
    draw = np.random.default_rng(0)
    batch = {
        "x": tf.constant(draw.normal(size=[B, D]).astype(np.float32)),
        "rows": tf.range(B),
        "weights": tf.ones(B),
    }
    results = []
    for one in (learner(SEPARATE), learner(stacked, accumulation_steps=accumulation_steps)):
        state = tf.nest.map_structure(tf.constant, initial_state(one))
        state, report = train_step(one, state, batch)
        level = report["states"]["level"]
        results.append((taken_apart(one, state), report["scalars"], level["sum"]))
        np.testing.assert_array_equal(level["weight"], 4.0 * one.accumulation_steps)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *results
    )
    assert results[0][0]["state/model/layers/3/mean"].any()
