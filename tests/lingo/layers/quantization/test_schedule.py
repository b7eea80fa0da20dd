import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.layers.quantization.schedule import FakeQuantizationSchedule, LinearClippingCapSchedule

X = tf.constant([-9.0, -1.0, 0.3, 0.999, 20.0])


@pytest.mark.parametrize(
    ("step", "cap"), [(0, 8.0), (100, 8.0), (5100, 6.25), (10100, 4.5), (20100, 1.0), (10**6, 1.0)]
)
def test_the_cap_is_a_line_between_two_steps(step, cap):
    schedule = LinearClippingCapSchedule.params(start_step=100, end_step=20100).build()
    assert float(schedule.cap(step)) == pytest.approx(cap, rel=1e-6)
    np.testing.assert_allclose(schedule.clip(X, step), np.clip(X, -cap, cap))


def test_values_are_clipped_and_later_rounded():
    schedule = FakeQuantizationSchedule.params(
        clip_end_step=10, quant_start_step=20, start_cap=8.0, end_cap=1.0
    ).build()
    np.testing.assert_allclose(schedule.quantize(X, 5), np.clip(X, -4.5, 4.5 * 127 / 128))
    np.testing.assert_allclose(schedule.quantize(X, 19), np.clip(X, -1.0, 127 / 128))
    expected = tf.quantization.fake_quant_with_min_max_args(X, -1.0, 127 / 128)
    np.testing.assert_array_equal(schedule.quantize(X, 20), expected)


def test_one_that_never_begins_changes_nothing():
    schedule = FakeQuantizationSchedule.params(clip_start_step=-1).build()
    np.testing.assert_array_equal(schedule.quantize(X, 10**6), X)


def test_one_without_steps_between_clips_at_once():
    schedule = FakeQuantizationSchedule.params(
        clip_start_step=3, clip_end_step=3, quant_start_step=3
    ).build()
    assert [float(schedule.limits(step).low) for step in (2, 3)] == [-8.0, -1.0]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (LinearClippingCapSchedule.params(start_step=5, end_step=5), "end_step=5 is not after"),
        (LinearClippingCapSchedule.params(start_step=-1), "start_step=-1 is negative"),
        (LinearClippingCapSchedule.params(end_cap=0.0), "end_cap=0.0 is not positive"),
        (FakeQuantizationSchedule.params(quant_start_step=9), "is before clip_end_step=15000"),
        (FakeQuantizationSchedule.params(clip_end_step=-3), "is before clip_start_step=0"),
        (FakeQuantizationSchedule.params(bits=17), "bits=17 is not in 2 to 16"),
        (FakeQuantizationSchedule.params(start_cap=-1.0), "start_cap=-1.0 is not positive"),
    ],
)
def test_refusals(schedule, message):
    with pytest.raises(ParamError, match=message):
        schedule.build()
