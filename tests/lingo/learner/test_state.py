"""State: one checkpoint for separate and stacked layers, with nothing in it that nobody uses."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import Checkpoint, open_sound
from lingo.checkpoints.store import Retention
from lingo.config.lazy import tf
from lingo.config.params import Params
from lingo.layers.layer import Layer
from lingo.layers.path import names
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.learner.state import (
    Learner,
    TrainState,
    initial_state,
    map_shapes,
    name_vectors,
    named_shapes,
    named_tensors,
    restore_state,
)
from lingo.learner.step import train_step
from lingo.learner.task import Task
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.sgd import Sgd
from lingo.storage.shards import Shards

B, D = 4, 3


class Saved(NamedTuple):
    """A checkpoint in memory."""

    step: int
    values: Any  # name -> array

    def require(self, expected: Any) -> None:
        assert {k: (v.shape, str(v.dtype)) for k, v in self.values.items()} == expected

    def read_slices(self, names: Any, index: Any) -> list[np.ndarray]:
        return [self.values[name][index] for name in names]


class Centered(Layer):
    """A linear layer that takes off the moving mean of its inputs."""

    def setup(self) -> None:
        self.w = self.weight("w", [D, D], axes=(None, None))
        self.mean = self.state("mean", [D], decay=0.5)

    def __call__(self, x: Any) -> Any:
        self.batch_statistic("mean", tf.reduce_sum(x, 0), tf.constant(x.shape[0]))
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
    pairs = list(named_tensors(learner, tf.nest.map_structure(np.asarray, state)))
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def numbers(learner: Learner) -> TrainState:
    """Returns a state in which no two elements are the same."""
    draw = np.random.default_rng(0)
    return map_shapes(learner, lambda shape: draw.normal(size=shape).astype(np.float32))


def assert_equal(a: Any, b: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


@over_optimizers
@over_stacks
def test_a_checkpoint_of_stacked_layers_is_one_of_separate_layers_and_back(stacked, optimizer):
    one, other = learner(SEPARATE, optimizer), learner(stacked, optimizer)
    saved = taken_apart(one, numbers(one))
    shapes = {name: value.shape for name, value in saved.items()}
    assert named_shapes(one) == named_shapes(other) == shapes  # known without values
    restored = restore_state(other, Saved(7, saved))
    assert restored.step == 7
    assert_equal(taken_apart(other, restored), saved)
    assert_equal(
        taken_apart(one, restore_state(one, Saved(7, taken_apart(other, restored)))), saved
    )


@over_optimizers
@over_stacks
def test_initial_values_are_those_of_separate_layers(stacked, optimizer):
    one, other = learner(SEPARATE, optimizer), learner(stacked, optimizer)
    values = taken_apart(one, initial_state(one))
    assert_equal(taken_apart(other, initial_state(other)), values)
    drawn = values["weights/model/layers/0/w"]
    assert not np.array_equal(drawn, values["weights/model/layers/1/w"])
    another_seed = taken_apart(one, initial_state(one._replace(seed=4)))
    assert not np.array_equal(drawn, another_seed["weights/model/layers/0/w"])


def test_slots_are_saved_for_the_layers_that_use_them_and_others_begin_anew():
    for model in (SEPARATE, STACKED[0]):
        names = named_shapes(learner(model, GROUPS))
        assert sorted(name for name in names if name.startswith("slots/")) == [
            "slots/m/model/layers/1/w",
            "slots/momentum/model/layers/2/w",
            "slots/momentum/model/layers/3/w",
            "slots/v/model/layers/1/w",
        ]
    one = learner(STACKED[0], GROUPS)
    restored = restore_state(one, Saved(0, taken_apart(one, numbers(one))))
    momentum = restored.slots["model/layers/[0:4]/w"]["momentum"]
    np.testing.assert_array_equal(momentum[:2], np.zeros((2, D, D)))


def test_moving_averages_begin_with_weights_and_statistics():
    one = learner(STACKED[0])
    state = initial_state(one)
    assert_equal(state.select("ema").weights, state.weights)
    assert_equal(state.select("ema").state, state.state)
    for name in ("w", "mean"):
        assert f"slots/ema/model/layers/3/{name}" in named_shapes(one)


def dealt(draw: np.random.Generator, value: np.ndarray, count: int) -> list[Shards]:
    """Cuts a tensor in two along each axis, and deals the parts to some processes."""
    hands: list[list] = [[] for _ in range(count)]
    ends = [(0, int(draw.integers(size + 1)), size) for size in value.shape]
    for corner in itertools.product((0, 1), repeat=value.ndim):
        index = tuple(slice(end[i], end[i + 1]) for end, i in zip(ends, corner, strict=True))
        hands[draw.integers(count)].append((index, value[index]))
    return [Shards(value.shape, hand) for hand in hands]


def split(state: TrainState, seed: int, count: int) -> list[TrainState]:
    """Returns what each of some processes has of a state."""
    draw = np.random.default_rng(seed)
    hands = zip(*(dealt(draw, leaf, count) for leaf in tf.nest.flatten(state)), strict=True)
    return [tf.nest.pack_sequence_as(state, list(hand)) for hand in hands]


@over_optimizers
@pytest.mark.parametrize("model", [SEPARATE, *STACKED], ids=["Stack", "Repeat", "pattern"])
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_stacked_tensor_are_parts_of_each_layers(model, optimizer, seed):
    one = learner(model, optimizer)
    state = numbers(one)
    found = {name: np.full(shape, np.nan) for name, shape in named_shapes(one).items()}
    for hand in split(state, seed, count=3):
        for name, parts in named_tensors(one, hand):
            assert parts.shape == found[name].shape
            for index, array in parts.shards:
                assert np.isnan(found[name][index]).all(), "no element twice"
                found[name][index] = array
    assert_equal(found, taken_apart(one, state))


@over_optimizers
@over_stacks
def test_any_slice_of_a_checkpoint_is_that_of_the_whole_and_nothing_more_is_read(
    stacked, optimizer, tmp_path, monkeypatch
):
    one, other = learner(SEPARATE, optimizer), learner(stacked, optimizer)
    tensors = named_tensors(one, numbers(one))
    found = open_sound(
        store.save(tmp_path, step=7, tensors=tensors, metadata={}, retention=Retention(1))
    )
    whole, asked = restore_state(other, Saved(7, taken_apart(one, numbers(one)))), []
    read = Checkpoint.read_slices

    def record(checkpoint: Checkpoint, names: Any, index: Any) -> list[np.ndarray]:
        asked.extend(names)
        return read(checkpoint, names, index)

    monkeypatch.setattr(Checkpoint, "read_slices", record)
    lazy = restore_state(other, found)
    assert (lazy.step, asked) == (7, [])
    tf.nest.map_structure(lambda a, b: assert_same_slices(a, np.asarray(b)), lazy, whole)
    where = next(path for path in lazy.weights if "[" in path)
    asked.clear()
    _ = lazy.weights[where][1:2, 0:1]
    assert asked == [f"weights/{names(where)[1]}"]


def assert_same_slices(lazy: Any, whole: np.ndarray) -> None:
    if whole.ndim:
        index = tuple(slice(size // 3, 1 + size // 2) for size in whole.shape)
        np.testing.assert_array_equal(lazy[index], whole[index])


def test_only_what_is_asked_for_of_the_first_state_is_drawn_or_read():
    one, asked = learner(STACKED[0]), []

    def given(name: str) -> np.ndarray | None:
        asked.append(name)
        return np.full((D, D), 5.0, np.float32) if name.endswith("1/w") else None

    state, drawn = initial_state(one, given), initial_state(one)
    (where,) = state.weights
    assert asked == []
    part = state.weights[where][1:3, :, 1:2]
    assert asked == ["model/layers/1/w", "model/layers/2/w"]
    np.testing.assert_array_equal(part[0], np.full((D, 1), 5.0))
    np.testing.assert_array_equal(part[1], np.asarray(drawn.weights[where])[2, :, 1:2])
    np.testing.assert_array_equal(state.slots[where]["m"][1:3, :, 1:2], np.zeros((2, D, 1)))


@over_stacks
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_step_leaves_the_state_and_report_of_separate_layers(stacked, accumulation_steps):
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
        level = report["metric_states"]["level"]
        results.append((taken_apart(one, state), report["scalars"], level["sum"]))
        np.testing.assert_array_equal(level["weight"], 4.0 * one.accumulation_steps)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *results
    )
    assert results[0][0]["state/model/layers/3/mean"].any()


def test_vectors_of_alike_layers_have_the_names_of_their_layers():
    stacked = np.arange(12.0).reshape(2, 2, 3)
    found = name_vectors({"a/[0:2]/b/[1:4:2]/load": stacked, "c/load": np.ones([3])})
    assert {name: vector.tolist() for name, vector in found.items()} == {
        "state/a/0/b/1/load": [0.0, 1.0, 2.0],
        "state/a/0/b/3/load": [3.0, 4.0, 5.0],
        "state/a/1/b/1/load": [6.0, 7.0, 8.0],
        "state/a/1/b/3/load": [9.0, 10.0, 11.0],
        "state/c/load": [1.0, 1.0, 1.0],
    }
    assert name_vectors({}) == {}
