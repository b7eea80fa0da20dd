"""Schedules: published values, the same numbers on the host and in the program."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.schedule import ConstantRate, Cosine, LinearRate, Transformer, Warmup

SCHEDULES = [
    ConstantRate.params(value=0.5),
    LinearRate.params(num_steps=7, start=0.25, end=2.0),
    Cosine.params(num_steps=10, end=0.1),
    Warmup.params(num_steps=4, then=Cosine.params(num_steps=10, end=0.1)),
    Warmup.params(num_steps=0, then=LinearRate.params(num_steps=3)),
    Transformer.params(model_dim=512, warmup_steps=8),
]


def test_the_transformer_schedule_has_the_published_values():
    schedule = Transformer.params(model_dim=512, warmup_steps=4000).build()
    values = [schedule(step) for step in (0, 100, 4000, 10000)]
    np.testing.assert_allclose(
        values, [1.74693e-07, 1.7644e-05, 6.98684e-04, 4.4192e-04], rtol=1e-5
    )


def test_a_line_goes_from_start_to_end_and_stays_there():
    schedule = LinearRate.params(num_steps=4, start=1.0, end=0.5).build()
    assert schedule(np.arange(7)).tolist() == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


def test_a_cosine_is_one_half_way_and_end_after():
    schedule = Cosine.params(num_steps=8, end=0.2).build()
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * t / 8)) / 2 for t in range(9)]
    np.testing.assert_allclose(schedule(np.arange(9)), expected, rtol=1e-6, atol=1e-7)
    assert schedule(4) == pytest.approx(0.6)
    assert schedule(1000) == pytest.approx(0.2)


def test_warmup_rises_to_what_follows_and_then_follows_it_from_its_step_0():
    schedule = Warmup.params(
        num_steps=4, then=LinearRate.params(num_steps=2, start=2.0, end=1.0)
    ).build()
    assert schedule(np.arange(8)).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 1.5, 1.0, 1.0]


def test_warmup_may_start_above_zero():
    schedule = Warmup.params(num_steps=4, start=0.5).build()
    assert schedule(np.arange(6)).tolist() == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


@pytest.mark.parametrize("params", SCHEDULES, ids=lambda p: p.cls.__name__)
def test_host_eager_and_graph_agree(params):
    schedule = params.build()
    steps = np.arange(20)
    host = schedule(steps)
    assert host.dtype == np.float32
    np.testing.assert_allclose(schedule(tf.constant(steps)), host, rtol=1e-6, atol=1e-7)
    graph = tf.function(lambda step: schedule(step), autograph=False)
    assert graph(tf.constant(3)).dtype == tf.float32
    np.testing.assert_allclose(
        [graph(tf.constant(t)) for t in (0, 3, 19)], host[[0, 3, 19]], rtol=1e-6
    )


@pytest.mark.parametrize("params", SCHEDULES, ids=lambda p: p.cls.__name__)
def test_one_step_is_that_of_many(params):
    schedule = params.build()
    assert [float(schedule(t)) for t in range(6)] == schedule(np.arange(6)).tolist()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Cosine.params(num_steps=0), "num_steps=0 is not positive"),
        (LinearRate.params(num_steps=-1), "num_steps=-1 is not positive"),
        (Warmup.params(num_steps=-1), "num_steps=-1 is negative"),
        (Transformer.params(model_dim=8, warmup_steps=0), "warmup_steps=0 is not positive"),
        (Transformer.params(model_dim=0), "model_dim=0 is not positive"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ParamError, match=message):
        params.build()
