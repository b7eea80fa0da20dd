"""The loss scale is Keras's, keeps gradients that float16 would lose, and skips what overflows."""

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers.linear import Linear
from lingo.learner import loss_scale
from lingo.learner.loss_scale import SCALE, STEPS, next_states
from lingo.learner.state import Learner, initial_state, named_shapes, num_bytes
from lingo.learner.step import train_step
from lingo.learner.task import Task
from lingo.optim.sgd import Sgd

B, D = 4, 3


class Scaled(Task):
    """The mean of a linear layer's outputs times a factor: its gradients are known by hand."""

    linear: Linear = Linear.params(use_bias=False, dim=D, output_dim=1)
    factor: float = 1.0

    def setup(self):
        self.linear = self.p.linear.build()

    def loss(self, batch):
        return {"main": tf.reduce_sum(tf.cast(self.linear(batch["x"]), "float32") * self.p.factor)}


def learner(dtype="float16", **fields):
    task = Scaled.params(dtype=dtype, **fields)
    return Learner(task.build(), Sgd.params(learning_rate=1.0).build())


def state_of(one, **states):
    """Returns the first state with other states, and weights of 0, which keep the least update."""
    state = tf.nest.map_structure(tf.constant, initial_state(one))
    state.weights["linear/w"] = tf.zeros([D, 1])
    state.state.update({path: tf.constant(value) for path, value in states.items()})
    return state


def batch(value=1.0):
    arrays = {"x": np.full([B, D], value, "f"), "weights": np.ones(B, "f")}
    return {k: tf.constant(v) for k, v in (arrays | {"rows": np.arange(B, dtype="i")}).items()}


def moved(one, state, examples):
    """Returns the state and report of a step, and by how much it lowers the weight."""
    after, report = tf.function(lambda s, b: train_step(one, s, b), autograph=False)(
        state, examples
    )
    return after, report, (state.weights["linear/w"] - after.weights["linear/w"]).numpy()


def test_it_follows_kerass_through_finite_and_other_steps(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    weight = keras.Variable(np.zeros(2, "f"))
    theirs = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1e-6), initial_scale=loss_scale.START, dynamic_growth_steps=3
    )
    theirs.build([weight])
    ours = {SCALE: tf.constant(loss_scale.START), STEPS: tf.constant(0.0)}
    draw = np.random.RandomState(0)
    seen = set()
    for is_finite in draw.uniform(size=60) < 0.75:
        theirs.apply([tf.constant([1.0, 1.0 if is_finite else np.inf])], [weight])
        ours = next_states(ours, tf.constant(bool(is_finite)))
        found = [float(value.numpy()) for value in (theirs.dynamic_scale, theirs.step_counter)]
        assert [float(ours[SCALE]), float(ours[STEPS])] == found
        seen.add(float(ours[SCALE]))
    assert len(seen) > 5


def test_it_stays_at_least_1_and_finite():
    least = next_states({SCALE: tf.constant(1.0), STEPS: tf.constant(5.0)}, tf.constant(False))
    assert (least[SCALE], least[STEPS]) == (1.0, 0.0)
    largest = {SCALE: tf.constant(2.0**127), STEPS: tf.constant(loss_scale.GROWTH_STEPS - 1.0)}
    assert next_states(largest, tf.constant(True))[SCALE] == 2.0**127


def test_only_layers_of_float16_have_one():
    assert learner("float32").states() == learner("bfloat16").states() == {}
    one = learner()
    assert {"state/loss_scale/scale", "state/loss_scale/finite_steps"} <= named_shapes(one).keys()
    assert num_bytes(one)["statistics"] == 8


def test_gradients_below_the_range_of_float16_arrive():
    factor = 2.0**-26  # float16 has nothing between 0 and 2**-24
    one = learner(factor=factor)
    _, _, lost = moved(one, state_of(one, **{SCALE: 1.0}), batch())
    _, _, kept = moved(one, state_of(one), batch())
    np.testing.assert_array_equal(lost, 0.0)
    np.testing.assert_array_equal(kept, np.full([D, 1], factor, "f"))


def test_within_its_range_the_scale_changes_no_bit():
    one = learner(factor=0.125)
    examples = batch() | {"x": tf.constant(np.random.RandomState(0).normal(size=[B, D]), "float32")}
    _, _, plain = moved(one, state_of(one, **{SCALE: 1.0}), examples)
    for scale in (2.0, 2.0**10):
        _, _, scaled = moved(one, state_of(one, **{SCALE: scale}), examples)
        np.testing.assert_array_equal(scaled, plain)


def test_a_step_that_overflows_halves_the_scale_and_changes_nothing_else():
    one = learner(factor=2.0)  # times 2**15 is beyond the range of float16
    after, report, change = moved(one, state_of(one, **{STEPS: 7.0}), batch())
    np.testing.assert_array_equal(change, 0.0)
    assert (after.state[SCALE], after.state[STEPS]) == (loss_scale.START / 2, 0.0)
    assert report["scalars"]["learner/loss_scale"] == loss_scale.START
    assert report["first_non_finite"] == -1  # the guard counts no failure
    after, _, change = moved(one, after, batch())
    np.testing.assert_array_equal(change, np.full([D, 1], 2.0, "f"))
    assert after.state[STEPS] == 1.0


@pytest.mark.parametrize(("value", "scale"), [(np.nan, loss_scale.START), (1.0, 1.0)])
def test_what_no_scale_can_help_is_a_failure(value, scale):
    one = learner(factor=1e6)  # beyond the range without a scale, too
    _, report, change = moved(one, state_of(one, **{SCALE: scale}), batch(value))
    assert report["first_non_finite"] >= 0
    np.testing.assert_array_equal(change, 0.0)
