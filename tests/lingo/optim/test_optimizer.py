"""The optimizer contract: rates, the choice among stacked weights, clipping, weight decay."""

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.optim.adafactor import Adafactor
from lingo.optim.adam import Adam
from lingo.optim.by_path import ByPath
from lingo.optim.layerwise import Lamb
from lingo.optim.optimizer import Update, Weight, global_norm, select
from lingo.optim.schedule import LinearRate, Schedule
from lingo.optim.sgd import Sgd

STACK = Weight("a/[0:2]/b/[0:3]/w", tuple("abcdef"), (2, 3, 4), 2)


def test_the_rate_is_peak_times_schedule_on_host_and_in_the_program():
    optimizer = Sgd.params(learning_rate=0.5, schedule=LinearRate.params(num_steps=4)).build()
    assert optimizer.rates(1) == {"learning_rate": np.float32(0.375)}
    assert optimizer.rates(tf.constant(1))["learning_rate"].numpy() == np.float32(0.375)


class Falling(Schedule):
    """1 at step 0, then lower by `slope` each step."""

    slope: float  # per step

    def factor(self, step, xp):
        return 1.0 - self.p.slope * step


class Unbounded(Schedule):
    """Not finite at step 3."""

    def factor(self, step, xp):
        return 1.0 / (3.0 - step)


@pytest.mark.parametrize(
    ("schedule", "step"), [(Falling.params(slope=0.1), 11), (Unbounded.params(), 3)]
)
def test_rates_below_0_or_not_finite_are_refused_with_their_step(schedule, step):
    optimizer = Sgd.params(learning_rate=0.5, schedule=schedule).build()
    optimizer.check_rates(step)
    with pytest.raises(
        ParamError, match=f"at step {step}, after the schedule {schedule.cls.__name__}"
    ):
        optimizer.check_rates(20)


def test_a_schedule_for_tensors_alone_is_not_refused():
    class OfTensors(Schedule):
        """A factor that NumPy cannot compute."""

        def factor(self, step, xp):
            return xp.cast(step, "float32")

    Sgd.params(learning_rate=0.5, schedule=OfTensors).build().check_rates(10)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adam.params(learning_rate=0.1),
        Adafactor.params(learning_rate=0.1),
        Lamb.params(learning_rate=0.1),
        ByPath.params(learning_rate=0.1, groups={"w": Adam}),
    ],
    ids=lambda params: params.cls.__name__,
)
def test_with_their_steps_slots_of_another_run_go_on_as_there(optimizer, gradients, start):
    weight, value, grads = Weight("w", ("w",), (3, 2)), start((3, 2)), gradients((3, 2), 6)

    def run(params, value, grads, slots=None):
        built, new = params.build(), tf.constant(value)
        if slots is None:
            slots = {k: tf.fill(slot.shape, slot.fill) for k, slot in built.slots(weight).items()}
        for step, grad in enumerate(grads):
            rates = built.rates(step)
            new, slots = built.update(
                Update(weight, new, tf.constant(grad), slots, tf.constant(step), rates)
            )
        return new, slots

    whole, _ = run(optimizer, value, grads)
    half = run(optimizer, value, grads[:3])
    counted, _ = run(optimizer.copy().set(slot_steps=3), half[0], grads[3:], half[1])
    np.testing.assert_array_equal(counted, whole)
    anew, _ = run(optimizer, half[0], grads[3:], half[1])
    assert not np.allclose(anew, whole)


def test_kept_slots_do_not_matter_to_an_adafactor_that_counts_from_0(gradients, start):
    weight, (grad,) = Weight("w", ("w",), (3, 2)), gradients((3, 2), 1)
    optimizer = Adafactor.params(learning_rate=0.1).build()
    found = []
    for fill in (0.0, 5.0):
        slots = {k: tf.fill(slot.shape, fill) for k, slot in optimizer.slots(weight).items()}
        update = Update(weight, start((3, 2)), grad, slots, tf.constant(0), optimizer.rates(0))
        found.append(optimizer.update(update).value)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_the_warm_up_of_averages_counts_the_steps_of_slots_that_were_read():
    fields = {"learning_rate": 0.1, "ema_decay": 0.999, "ema_warmup": True}
    one, other = Sgd.params(**fields).build(), Sgd.params(**fields, slot_steps=30).build()
    assert float(other.ema_rate(5)) == float(one.ema_rate(35)) == pytest.approx(0.2)


def test_an_update_goes_by_the_rates_that_it_is_given():
    optimizer = Sgd.params(learning_rate=1.0, weight_decay=0.5).build()
    ones, rates = tf.ones([2, 2]), {"learning_rate": tf.constant(0.25)}
    weight = Weight("w", ("w",), (2, 2))
    after = optimizer.update(Update(weight, ones, ones, {}, tf.constant(0), rates))
    np.testing.assert_array_equal(after.value, np.full((2, 2), 1 - 0.25 * 0.5 - 0.25))


def test_select_takes_weights_in_row_major_order():
    new, old = tf.ones([2, 3, 4]), tf.zeros([2, 3, 4])
    mixed = select(STACK, [True, False, False, False, False, True], new, old).numpy()
    assert mixed.sum() == 8
    assert mixed[0, 0].all()
    assert mixed[1, 2].all()
    assert select(STACK, [True] * 6, new, old) is new
    assert select(STACK, [False] * 6, new, old) is old


# ---- clipping ----------------------------------------------------------------------------------

WEIGHTS = {"a": Weight("a", ("a",), (2, 2)), "b": Weight("b", ("b",), (3,))}
GRADIENTS = {
    "a": np.array([[3.0, -4.0], [0.0, 12.0]], np.float32),  # of norm 13
    "b": np.array([0.3, 0.0, -0.4], np.float32),  # of norm 0.5
}


def clipped(weights=WEIGHTS, gradients=GRADIENTS, **limits):
    optimizer = Sgd.params(learning_rate=0.1, **limits).build()
    gradients = {where: tf.constant(grad) for where, grad in gradients.items()}
    after = optimizer.clip(weights, gradients, global_norm(weights, gradients))
    return {where: grad.numpy() for where, grad in after.items()}


@pytest.mark.parametrize(
    ("limits", "keras_limits"),
    [
        ({}, {}),
        ({"max_grad_norm": 2.0}, {"global_clipnorm": 2.0}),
        ({"max_grad_norm": 20.0}, {"global_clipnorm": 20.0}),
        ({"max_weight_grad_norm": 2.0}, {"clipnorm": 2.0}),
        ({"max_grad_value": 0.35}, {"clipvalue": 0.35}),
    ],
)
def test_gradients_are_clipped_as_keras_does(limits, keras_limits):
    variables = [keras.Variable(np.zeros_like(grad)) for grad in GRADIENTS.values()]
    oracle = keras.optimizers.SGD(1.0, **keras_limits)
    oracle.apply([tf.constant(grad) for grad in GRADIENTS.values()], variables)
    for ours, variable in zip(clipped(**limits).values(), variables, strict=True):
        np.testing.assert_allclose(ours, -variable.numpy(), rtol=1e-6)


def test_all_limits_together_hold_together():
    after = clipped(max_grad_value=3.5, max_weight_grad_norm=2.0, max_grad_norm=1.0)
    norms = [np.linalg.norm(grad) for grad in after.values()]
    assert np.hypot(*norms) == pytest.approx(1.0)
    value = np.clip(GRADIENTS["a"], -3.5, 3.5)
    by_weight = 2.0 * value / np.linalg.norm(value)
    np.testing.assert_allclose(after["a"], by_weight / np.hypot(2.0, 0.5), rtol=1e-6)


def test_gradients_of_a_large_norm_are_discarded():
    size = float(np.hypot(*(np.linalg.norm(grad) for grad in GRADIENTS.values())))
    kept = clipped(discard_grad_norm=1.01 * size, max_grad_norm=1.0)
    assert np.hypot(*(np.linalg.norm(grad) for grad in kept.values())) == pytest.approx(1.0)
    for grad in clipped(discard_grad_norm=0.99 * size, max_grad_norm=1.0).values():
        assert not grad.any()
    nan = {name: np.full_like(grad, np.nan) for name, grad in GRADIENTS.items()}
    for grad in clipped(gradients=nan, discard_grad_norm=1.0).values():
        assert np.isnan(grad).all()  # the step must not take them for good ones


def test_the_norm_of_one_weight_is_that_of_one_layer():
    grad = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    weights = {STACK.path: STACK, "s": Weight("l/[0:2]/s", ("l/0/s", "l/1/s"), (2,), 1)}
    gradients = {STACK.path: grad, "s": np.array([0.5, -4.0], np.float32)}
    after = clipped(weights, gradients, max_weight_grad_norm=2.0)
    for i, j in np.ndindex(2, 3):
        expected = grad[i, j] * 2.0 / max(np.linalg.norm(grad[i, j]), 2.0)
        np.testing.assert_allclose(after[STACK.path][i, j], expected, rtol=1e-6)
    np.testing.assert_allclose(after["s"], [0.5, -2.0])


# ---- weight decay ------------------------------------------------------------------------------


def test_a_no_decay_pattern_that_matches_nothing_is_refused():
    optimizer = Sgd.params(learning_rate=0.1, no_decay=["bias"]).build()
    with pytest.raises(ParamError, match="'bias' matches none of 1 weights"):
        optimizer.check_weights([Weight("ffn/bias", ("ffn/bias",), (2,))])


STACKED = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 4, 3), 1)


@pytest.mark.parametrize(
    ("weight", "options", "after"),
    [
        (Weight("w", ("w",), (2, 2)), {}, 0.75),
        (Weight("b", ("b",), (4,)), {}, 1.0),
        (Weight("l/[0:2]/b", ("l/0/b", "l/1/b"), (2, 2), 1), {}, 1.0),
        (Weight("b", ("b",), (4,)), {"min_decay_rank": 1}, 0.75),
        (Weight("w", ("w",), (2, 2)), {"no_decay": ["w|v"]}, 1.0),
        (Weight("w2", ("w2",), (2, 2)), {"no_decay": ["w"]}, 0.75),
        (STACKED, {"no_decay": ["l/1/w"]}, [[[0.75]], [[1.0]]]),
    ],
)
def test_what_decays(weight, options, after, run):
    ones = np.ones(weight.shape, np.float32)
    params = Sgd.params(learning_rate=0.5, weight_decay=0.5, **options)
    found, _ = run(params, ones, [0 * ones], weight)
    np.testing.assert_array_equal(found, ones * np.float32(after))
