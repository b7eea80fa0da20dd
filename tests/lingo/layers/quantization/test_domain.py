import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.quantization.domain import (
    PassiveAsymQDomain,
    Progress,
    QDomain,
    SymmetricScheduledClipQDomain,
    WeightQDomain,
)
from lingo.layers.quantization.schedule import FakeQuantizationSchedule
from lingo.ops.quantization import Range, fake_quantize, fake_quantize_channels

TRAINING, AFTER = Progress(None, True), Progress(None, False)
X = tf.constant(np.random.default_rng(0).normal(size=[4, 3, 5]).astype("f"))


def built(**fields):
    return PassiveAsymQDomain.params(**fields).build()


def test_each_example_has_its_own_range_in_training():
    domain = built()
    low, high = domain.measure(X)
    np.testing.assert_array_equal(low[:, 0, 0], np.minimum(tf.reduce_min(X, [1, 2]), 0.0))
    np.testing.assert_array_equal(high[:, 0, 0], np.maximum(tf.reduce_max(X, [1, 2]), 0.0))
    alone = domain.activation(X[2:3], domain.measure(X[2:3]), TRAINING)
    np.testing.assert_array_equal(domain.activation(X, Range(low, high), TRAINING)[2:3], alone)


def test_a_group_or_a_call_may_share_a_range():
    low, high = built(statistics_over=2).measure(X)
    assert low.shape == high.shape == [4, 1, 1]
    np.testing.assert_array_equal(
        low[:, 0, 0], np.repeat(np.min(X.numpy().reshape(2, -1), axis=1), 2)
    )
    assert [float(tf.squeeze(v)) for v in built(statistics_over=None).measure(X)] == [
        float(tf.reduce_min(X)),
        float(tf.reduce_max(X)),
    ]
    with pytest.raises(ParamError, match="statistics_over=3 does not divide the 4 examples"):
        built(statistics_over=3).measure(X)


def test_training_rounds_after_the_delay_or_never_and_evaluation_always():
    limits, rounded = Range(-1.0, 1.0), fake_quantize(X, Range(-1.0, 1.0))
    late = built(delay_start_steps=3)
    assert late.counts_steps
    assert not built().counts_steps
    for steps, expected in [(2.0, X), (3.0, rounded)]:
        now = Progress(tf.constant(steps), True)
        np.testing.assert_array_equal(late.activation(X, limits, now), expected)
    never = built(delay_start_steps=-1)
    np.testing.assert_array_equal(never.activation(X, limits, TRAINING), X)
    np.testing.assert_array_equal(never.weight(X, [0], TRAINING), X)
    np.testing.assert_array_equal(never.activation(X, limits, AFTER), rounded)


def test_weights_have_a_range_for_each_channel_or_one():
    np.testing.assert_array_equal(
        built().weight(X, [0, 1], AFTER), fake_quantize_channels(X, [0, 1])
    )
    whole = fake_quantize(X, Range(tf.reduce_min(X), tf.reduce_max(X)))
    np.testing.assert_array_equal(built(per_channel=False).weight(X, [0, 1], AFTER), whole)
    zeros = built(per_channel=False).weight(tf.zeros([2, 2]), [0], AFTER)
    np.testing.assert_array_equal(zeros, np.zeros([2, 2]))


def test_a_known_range_needs_no_measurement():
    expected = tf.quantization.fake_quant_with_min_max_args(X, -1.0, 127 / 128)
    np.testing.assert_array_equal(built().natural(X, "tanh", TRAINING), expected)


def test_a_schedule_clips_all_operands_alike_and_then_rounds_them():
    schedule = FakeQuantizationSchedule.params(clip_end_step=4, quant_start_step=6)
    domain = SymmetricScheduledClipQDomain.params(schedule=schedule).build()
    assert domain.counts_steps
    for step in (2.0, 6.0):
        now = Progress(tf.constant(step), True)
        expected = domain.schedule.quantize(X, step)
        np.testing.assert_array_equal(domain.weight(X, [0], now), expected)
        np.testing.assert_array_equal(domain.activation(X, None, now), expected)
    early, late = (
        domain.natural(X, "tanh", Progress(tf.constant(step), True)) for step in (5.0, 6.0)
    )
    np.testing.assert_array_equal(early, X)
    np.testing.assert_array_equal(late, built().natural(X, "tanh", TRAINING))


def test_a_schedule_that_never_begins_rounds_nothing():
    schedule = FakeQuantizationSchedule.params(clip_start_step=-1)
    domain = SymmetricScheduledClipQDomain.params(schedule=schedule).build()
    now = Progress(tf.constant(1e6), True)
    np.testing.assert_array_equal(domain.natural(X, "tanh", now), X)


def test_weights_alone():
    domain = WeightQDomain.params(bits=4).build()
    np.testing.assert_array_equal(
        domain.weight(X, [0], AFTER), fake_quantize_channels(X, [0], bits=4)
    )
    assert domain.activation(X, None, TRAINING) is X
    assert domain.natural(X, "tanh", TRAINING) is X


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (PassiveAsymQDomain.params(bits=1), "bits=1 is not in 2 to 16"),
        (PassiveAsymQDomain.params(range_decay=1.0), "range_decay=1.0 is not in"),
        (PassiveAsymQDomain.params(statistics_over=0), "statistics_over=0 is not positive"),
        (PassiveAsymQDomain.params(delay_start_steps=-2), "delay_start_steps=-2 is less than -1"),
        (WeightQDomain.params(bits=32), "bits=32 is not in 2 to 16"),
    ],
)
def test_refusals(domain, message):
    with pytest.raises(ParamError, match=message):
        domain.build()


def test_a_domain_has_to_define_what_it_does():
    class Empty(QDomain):
        pass

    domain = Empty.params().build()
    for call in (
        lambda: domain.weight(X, [0], AFTER),
        lambda: domain.activation(X, None, AFTER),
        lambda: domain.natural(X, "tanh", AFTER),
        lambda: domain.measure(X),
    ):
        with pytest.raises(NotImplementedError, match="Empty has no"):
            call()
