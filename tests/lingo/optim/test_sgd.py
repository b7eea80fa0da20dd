"""What gradient descent sums; `test_conformance.py` compares it with Keras."""

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.schedule import LinearRate
from lingo.optim.sgd import Momentum, Sgd

ONES = np.ones(5, np.float32)


def test_without_momentum_it_keeps_nothing(run):
    assert run(Sgd.params(learning_rate=0.01), ONES, [ONES])[1] == {}


def test_with_a_sum_of_gradients_a_lower_rate_takes_effect_at_once(run):
    params = Momentum.params(learning_rate=1.0, schedule=LinearRate.params(num_steps=1))
    np.testing.assert_array_equal(run(params, ONES, [ONES] * 3)[0], run(params, ONES, [ONES])[0])
    params.accumulate = "updates"
    assert (run(params, ONES, [ONES] * 2)[0] < run(params, ONES, [ONES])[0]).all()


@pytest.mark.parametrize("options", [{"nesterov": True}, {"accumulate": "updates"}])
def test_options_of_momentum_need_one(options):
    with pytest.raises(ParamError, match="needs a momentum, which is 0"):
        Sgd.params(learning_rate=0.1, **options).build()
