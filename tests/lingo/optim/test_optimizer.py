"""The optimizer contract: rates, and the choice among stacked weights."""

from __future__ import annotations

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.lazy import tf
from lingo.optim.optimizer import Weight, select
from lingo.optim.schedule import LinearRate
from lingo.optim.sgd import Sgd

STACK = Weight("a/[0:2]/b/[0:3]/w", tuple("abcdef"), (2, 3, 4), 2)


def test_the_rate_is_peak_times_schedule_on_host_and_in_the_program():
    optimizer = Sgd.params(learning_rate=0.5, schedule=LinearRate.params(num_steps=4)).build()
    assert optimizer.rate(1) == np.float32(0.375)
    assert optimizer.rate(tf.constant(1)).numpy() == np.float32(0.375)
    assert optimizer.rates(1) == {"learning_rate": 0.375}


def test_rank_and_stack_are_those_of_one_weight():
    assert STACK.rank == 1
    assert STACK.stack_shape == (2, 3)


def test_select_takes_weights_in_row_major_order():
    new, old = tf.ones([2, 3, 4]), tf.zeros([2, 3, 4])
    mixed = select(STACK, [True, False, False, False, False, True], new, old).numpy()
    assert mixed.sum() == 8
    assert mixed[0, 0].all()
    assert mixed[1, 2].all()


def test_select_of_all_or_none_computes_nothing():
    new, old = tf.ones([2, 3]), tf.zeros([2, 3])
    assert select(STACK, [True] * 6, new, old) is new
    assert select(STACK, [False] * 6, new, old) is old


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", -1.0), ("max_grad_norm", 0.0), ("ema_decay", 1.0), ("ema_decay", -0.1)],
)
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(ParamError, match=f"{field}={value}"):
        Sgd.params(**{"learning_rate": 0.1} | {field: value}).build()
