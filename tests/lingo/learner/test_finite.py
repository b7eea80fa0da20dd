"""Of everything that a step makes, the first that is not finite is named."""

import math

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers.sequence.attention import Attention
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner import finite
from lingo.learner.state import Learner, initial_state, load_arrays
from lingo.learner.task import Task
from lingo.learner.update import update
from lingo.optim.adam import Adam
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

TERMS, ARRAYS = ("cross_entropy", "total"), ("weights",)


def learner(stack):
    layer = TransformerLayer.params(attention=Attention.params(num_heads=2))
    model = LanguageModel.params(dim=4, stack=stack.params(layer=layer, num_layers=2))
    task = LanguageModeling.params(vocab_size=7, model=model)
    return Learner(task.build(), Adam.params(learning_rate=0.1, ema_decay=0.5).build())


def sums(one):
    """Returns what a step adds up, of zeros and ones."""
    return {
        "arrays": {name: tf.constant(1.0) for name in ARRAYS},
        "losses": {term: tf.constant(1.0) for term in TERMS},
        "batch_statistics": {},
        "metrics": {},
        "row_gradients": {},
        "gradients": {k: tf.ones(weight.shape) for k, weight in one.weights().items()},
    }


def found(one, sums, state=None):
    """Returns the name of what an update finds, or None."""
    state = tf.nest.map_structure(tf.constant, state or initial_state(one))
    report = update(one, state, sums)[1]
    batch = {name: np.ones(1, "f") for name in ARRAYS}
    scalars = [f"loss/{term}" for term in TERMS]
    return finite.name_first_non_finite(
        one, int(report["first_non_finite"]), batch=batch, scalars=scalars
    )


def spoilt(tensor, *index):
    value = tensor.numpy()
    value[index] = np.nan
    return tf.constant(value)


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_every_gradient_is_named_by_its_layer(stack):
    one, expected = learner(stack), set()
    assert found(one, sums(one)) is None
    for where, weight in one.weights().items():
        for i, name in enumerate(weight.names):
            made = sums(one)
            index = np.unravel_index(i, weight.stack_shape) if weight.stack_shape else ()
            made["gradients"][where] = spoilt(made["gradients"][where], *index)
            assert found(one, made) == f"gradients/{name}"
            expected.add(name)
    assert "model/stack/layers/1/ffn/w_in" in expected


def test_what_comes_first_in_a_step_is_named_first():
    one = learner(Stack)
    nan, made, paths = tf.constant(math.nan), sums(one), list(one.weights())
    for where in paths[1:4]:
        made["gradients"][where] = spoilt(made["gradients"][where])
    assert found(one, made) == f"gradients/{paths[3]}", "the nearest to the loss"
    made["losses"]["total"] = nan
    assert found(one, made) == "loss/total"
    made["losses"]["cross_entropy"] = nan
    assert found(one, made) == "loss/cross_entropy"
    made["arrays"]["weights"] = nan
    assert found(one, made) == "batch/weights"


def test_a_batch_alone_keeps_no_update_from_being_applied():
    one = learner(Stack)
    made = sums(one)
    made["arrays"]["weights"] = tf.constant(math.nan)
    assert found(one, made) is None, "it is masked: the loss is finite"


def test_finite_gradients_may_add_up_to_too_much():
    one = learner(Stack)
    made = sums(one)
    some = list(made["gradients"])[:4]
    for where in some:
        shape = made["gradients"][where].shape
        made["gradients"][where] = tf.fill(shape, math.sqrt(3e38 / shape.num_elements()))
    assert found(one, made) == finite.GRAD_NORM


@pytest.mark.parametrize("stack", [Stack, Repeat])
def test_new_values_are_named_as_checkpoints_name_them(stack):
    one = learner(stack)
    where = next(path for path in one.weights() if path.endswith("ffn/w_in"))
    index = (1,) if stack is Repeat else ()
    name = "model/stack/layers/1/ffn/w_in" if index else where
    state = load_arrays(initial_state(one))
    state.weights[where][index] = np.nan
    assert found(one, sums(one), state) == f"weights/{name}"
    state = load_arrays(initial_state(one))
    average = state.slots[where]["ema"].copy()
    average[index] = np.nan
    state.slots[where]["ema"] = average
    assert found(one, sums(one), state) == f"slots/ema/{name}"


class Levelled(Task):
    """Has a weight, and remembers a level."""

    def setup(self) -> None:
        self.level = self.state("level", [2], decay=0.5)
        self.w = self.weight("w", [2], axes=(None,))


def test_batch_statistics_come_before_gradients():
    one = Learner(Levelled.params().build(), Adam.params(learning_rate=0.1).build())
    made = sums(one)
    infinite = {"sum": tf.constant([1.0, math.inf]), "weight": tf.constant(1.0)}
    made["batch_statistics"] = {"level": infinite}
    made["gradients"]["w"] = spoilt(made["gradients"]["w"])
    assert found(one, made) == "batch_statistics/level"
    state = tf.nest.map_structure(tf.constant, initial_state(one))
    after, _ = update(one, state, made)
    np.testing.assert_array_equal(after.state["level"], state.state["level"])
