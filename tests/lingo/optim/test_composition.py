"""Schedules made of schedules."""

from __future__ import annotations

import numpy as np
import pytest

import lingo
from lingo.config.params import ParamError
from lingo.optim.composition import Product, Sequence, WarmupStableDecay
from lingo.optim.schedule import (
    ConstantRate,
    Cosine,
    Exponential,
    InverseSqrt,
    LinearRate,
    Polynomial,
    Transformer,
    Warmup,
)


def test_each_part_begins_at_its_own_step_0_and_the_last_goes_on():
    fall = LinearRate.params(num_steps=2, start=4.0, end=2.0)
    schedule = Sequence.params(parts=[(fall, 3), (ConstantRate.params(value=8.0), 1), (fall, 1)])
    assert schedule.build()(np.arange(8)).tolist() == [4.0, 3.0, 2.0, 8.0, 4.0, 3.0, 2.0, 2.0]


def test_a_part_lasts_as_long_as_it_takes_unless_it_says_otherwise():
    schedule = Sequence.params(
        parts=[(LinearRate.params(start=0.0, end=1.0), 2), (LinearRate.params(num_steps=4), 2)]
    ).build()
    assert schedule(np.arange(6)).tolist() == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]


def test_a_product_multiplies_at_the_same_step():
    factors = [Warmup.params(num_steps=4), InverseSqrt.params(hold_steps=4)]
    schedule = Product.params(schedules=factors).build()
    expected = [min(t / 4, (4 / max(t, 4)) ** 0.5) for t in range(20)]
    np.testing.assert_allclose(schedule(np.arange(20)), expected, rtol=1e-6)


def test_rise_plateau_and_fall():
    schedule = WarmupStableDecay.params(warmup_steps=2, stable_steps=3, decay_steps=4).build()
    expected = [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert schedule(np.arange(11)).tolist() == expected


def test_the_fall_may_be_any_schedule():
    schedule = WarmupStableDecay.params(
        warmup_steps=0, stable_steps=1, decay_steps=2, decay=Exponential.params(decay_rate=0.25)
    ).build()
    assert schedule(np.arange(4)).tolist() == [1.0, 1.0, 0.5, 0.25]


def test_the_schedule_of_lars_for_resnet_has_the_published_values():
    """Scale MLPerf-0.6 (Kumar et al. 2019): batch 32768, warm-up of 25 epochs, 2983 steps."""
    peak, end, num_steps, warmup_epochs = 31.2, 1e-4, 2983, 25
    steps_per_epoch = 1281167 / 32768
    warmup = warmup_epochs * 1281167 // 32768  # 977; the rise itself ends 0.45 steps later
    length = num_steps - warmup + 1
    rise = LinearRate.params(start=0.0, end=(warmup + 1) / (warmup_epochs * steps_per_epoch))
    fall = Polynomial.params(  # begins one step into the polynomial
        num_steps=length - 1,
        power=2.0,
        start=(end + (peak - end) * (1 - 1 / length) ** 2) / peak,
        end=end / peak,
    )
    schedule = Sequence.params(parts=[(rise, warmup + 1), (fall, length)]).build()
    rates = peak * schedule(np.array([100, 977, 1500, 2983]))
    np.testing.assert_allclose(rates, [3.19197, 31.185545, 17.058027, 1.077457e-4], rtol=1e-5)


def test_parts_are_set_from_the_command_line():
    schedule = "optimizer.schedule=Sequence(parts=[[LinearRate(start=0,end=1),10],[Cosine,90]])"
    params = lingo.get("lm.source.tiny", schedule, "optimizer.schedule.parts[0][1]=20")
    built = params.optimizer.schedule.build()
    expected = [0.0, 0.5, 1.0, 0.5, 0.0]
    np.testing.assert_allclose(built(np.array([0, 10, 20, 65, 110])), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Sequence.params(parts=[]), "parts is empty"),
        (Sequence.params(parts=[(Cosine, 3), (Cosine, 0)]), r"parts\[1\] lasts 0 steps"),
        (
            Sequence.params(parts=[(Transformer, 3)]),
            r"parts\[0\]\[0\]: Transformer needs model_dim",
        ),
        (Product.params(schedules=[]), "schedules is empty"),
        (
            WarmupStableDecay.params(warmup_steps=-1, stable_steps=0, decay_steps=1),
            "warmup_steps=-1 is negative",
        ),
        (
            WarmupStableDecay.params(warmup_steps=0, stable_steps=-1, decay_steps=1),
            "stable_steps=-1 is negative",
        ),
        (
            WarmupStableDecay.params(warmup_steps=0, stable_steps=0, decay_steps=0),
            "decay_steps=0 is not positive",
        ),
    ],
)
def test_compositions_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ParamError, match=message):
        params.build()
