"""Noise of weights against NumPy, and what it leaves as it is."""

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.layers import path
from lingo.layers.linear import Linear
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner, TrainState, initial_state
from lingo.learner.step import batch_sums, loss_denominators, train_step
from lingo.learner.task import Task
from lingo.learner.weight_noise import WeightNoise
from lingo.ops import random
from lingo.optim.sgd import Sgd

B, D, STDDEV, START = 4, 3, 0.5, 2
X = np.random.RandomState(0).normal(size=(B, D)).astype("f")
BATCH = {"x": tf.constant(X), "weights": tf.ones(B), "rows": tf.range(B)}


class Square(Task):
    """The sum of squares of a product."""

    first: Linear = Linear.params(dim=D, output_dim=D, use_bias=True)

    def setup(self) -> None:
        self.first = self.p.first.build()

    def loss(self, batch: Any) -> dict[str, tf.Tensor]:
        y = tf.cast(self.first(batch["x"]), tf.float32)
        return {"square": tf.reduce_sum(batch["weights"][:, None] * y**2)}


def noise(step: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the noise of one layer's weight, in NumPy."""
    key = random.fold(random.fold(random.root_key(1), step), random.text_hash("weight_noise"))
    return STDDEV * random.normal(path.key(key, name), *shape)


def begin(**fields: Any) -> tuple[Learner, TrainState]:
    params = WeightNoise.params(stddev=STDDEV, start_step=START).set(**fields)
    optimizer = Sgd.params(learning_rate=0.25).build()
    learner = Learner(Square.params().build(), optimizer, seed=1, weight_noise=params.build())
    learner.check()
    return learner, tf.nest.map_structure(tf.constant, initial_state(learner))


def at(state: TrainState, step: int) -> TrainState:
    return state._replace(step=tf.constant(step))


@pytest.mark.parametrize("pattern", [".*", ".*/w"])
@pytest.mark.parametrize("step", [0, START - 1, START, 7])
def test_a_step_moves_weights_by_the_gradient_at_noisy_ones(step: int, pattern: str) -> None:
    learner, state = begin(pattern=pattern)
    after, report = train_step(learner, at(state, step), BATCH)
    w, b = (state.weights[f"first/{name}"].numpy().astype("d") for name in ("w", "b"))
    noisy_w, noisy_b = w, b
    if step >= START:
        noisy_w = w + noise(step, "first/w", w.shape)
        noisy_b = b + (noise(step, "first/b", b.shape) if pattern == ".*" else 0)
    x = X.astype("d")
    y = x @ noisy_w + noisy_b
    np.testing.assert_allclose(report["scalars"]["loss/square"], (y**2).sum() / B, rtol=1e-5)
    wanted = {"first/w": w - 0.5 * x.T @ y / B, "first/b": b - 0.5 * y.sum(axis=0) / B}
    for name, value in wanted.items():
        np.testing.assert_allclose(after.weights[name], value, rtol=1e-4, atol=1e-5)


def test_noise_is_normal_and_new_at_each_step() -> None:
    built = WeightNoise.params(stddev=STDDEV).build()
    zeros, key = {"a/w": tf.zeros([300, 400]), "b/w": tf.zeros([300, 400])}, random.root_key(0)
    drawn = [built.add(zeros, random.fold(key, i), tf.constant(i)) for i in range(2)]
    values = np.array([value for each in drawn for value in each.values()]).reshape(4, -1)
    np.testing.assert_allclose(values.std(axis=1), STDDEV, rtol=0.01)
    np.testing.assert_allclose(values.mean(axis=1), 0, atol=0.01)
    np.testing.assert_allclose(np.corrcoef(values), np.eye(4), atol=0.01)


@pytest.mark.parametrize("pattern", [".*", ".*layers/1/.*"])
def test_stacked_layers_have_the_noise_of_single_ones(pattern: str) -> None:
    built = WeightNoise.params(stddev=STDDEV, pattern=pattern).build()
    layer = TransformerLayer.params()
    layer.attention.num_heads = 2

    def noisy(stack: Params) -> dict[str, np.ndarray]:
        specs = stack.set(layer=layer.copy(), num_layers=3).build(dim=4).weights()
        zeros = {where: tf.zeros(spec.program_shape) for where, spec in specs.items()}
        found = built.add(zeros, random.root_key(1), tf.constant(0))
        return dict(path.LayerWeights({k: v.numpy() for k, v in found.items()}))

    stacked, single = noisy(Repeat.params()), noisy(Stack.params())
    assert stacked.keys() == single.keys()
    for name, value in single.items():
        np.testing.assert_allclose(stacked[name], value, atol=1e-6)
        assert value.any() == (pattern == ".*" or "layers/1/" in name)


def test_all_parts_of_a_batch_have_the_same_noise() -> None:
    learner, state = begin()
    whole, _ = train_step(learner, at(state, START), BATCH)
    many, _ = train_step(learner._replace(accumulation_steps=2), at(state, START), BATCH)
    denominators = loss_denominators(learner.task, BATCH)
    halves = [{k: v[half] for k, v in BATCH.items()} for half in (slice(1), slice(1, B))]
    sums = [batch_sums(learner, at(state, START), half, denominators) for half in halves]
    for name, value in whole.weights.items():
        np.testing.assert_allclose(many.weights[name], value, rtol=1e-5)
        gradient = sums[0]["gradients"][name] + sums[1]["gradients"][name]
        np.testing.assert_allclose(state.weights[name] - 0.25 * gradient, value, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pattern": "second/.*"}, r"weight_noise.pattern: 'second/.\*' matches none of 2 weights"),
        ({"stddev": 0.0}, "stddev=0.0"),
        ({"start_step": -1}, "start_step=-1"),
        ({"pattern": "("}, "pattern"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamError, match=said):
        begin(**fields)
