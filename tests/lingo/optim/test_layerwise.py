"""LARS and LAMB against optax, slow NumPy and published values.

`tools/oracles/layerwise.py` wrote the values of optax.
"""

import json
import pathlib

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.optimizer import Weight
from lingo.optim.schedule import LinearRate

OPTAX = json.loads((pathlib.Path(__file__).parent / "layerwise.json").read_text())
NAMES = {
    "b1": "beta1",
    "b2": "beta2",
    "eps": "epsilon",
    "learning_rate": "learning_rate",
    "momentum": "momentum",
    "trust_coefficient": "trust_coefficient",
    "weight_decay": "weight_decay",
}
OURS = {"lamb": Lamb, "lars": Lars}


@pytest.mark.parametrize("name", OPTAX)
def test_equals_optax_over_20_steps(name, run, start, gradients):
    case = OPTAX[name]
    fields = {NAMES[argument]: value for argument, value in case["arguments"].items()}
    weight, _ = run(OURS[case["function"]].params(**fields), start((4, 3)), gradients((4, 3)))
    np.testing.assert_allclose(weight, case["weight"], rtol=2e-6, atol=1e-6)


def test_lamb_has_the_values_of_the_published_recurrence(run):
    params = Lamb.params(
        learning_rate=0.001, weight_decay=0.01, epsilon=1e-6, min_decay_rank=1, min_ratio_rank=1
    )
    value, grads = np.float32([3.0, 4.0]), [np.float32([0.1, -0.2])] * 3
    expected = [[2.99634237, 4.00340907], [2.99268435, 4.0068185], [2.98902593, 4.0102283]]
    for num_steps, after in enumerate(expected, 1):
        weight, _ = run(params, value, grads[:num_steps])
        np.testing.assert_allclose(weight, after, rtol=1e-7)


def train_by_lars(value, grads, rates, *, eta, decay, momentum, epsilon, accumulate):
    """The reference of MLPerf ("gradients") and algorithm 1 of the paper ("updates"), float64."""
    w, v = value.astype(float), np.zeros(value.shape)
    for grad, rate in zip(grads, rates, strict=True):
        g, norm = grad.astype(float), np.sqrt((w**2).sum())
        grad_norm = np.sqrt((g**2).sum())
        ratio = eta * norm / (grad_norm + decay * norm + epsilon) if norm and grad_norm else 1.0
        if accumulate == "gradients":
            v = momentum * v + (g + decay * w)
            w = w - rate * ratio * v
        else:
            v = momentum * v + rate * ratio * (g + decay * w)
            w = w - v
    return w


@pytest.mark.parametrize("accumulate", ["gradients", "updates"])
def test_lars_equals_numpy_with_decay_and_a_falling_rate(accumulate, run, start, gradients):
    fields = {"momentum": 0.9, "epsilon": 1e-3, "accumulate": accumulate}
    params = Lars.params(
        learning_rate=2.0,
        schedule=LinearRate.params(num_steps=30),
        weight_decay=0.1,
        trust_coefficient=0.05,
        **fields,
    )
    weight, _ = run(params, start((4, 3)), gradients((4, 3)))
    rates = 2.0 * (1 - np.arange(20) / 30)
    expected = train_by_lars(start((4, 3)), gradients((4, 3)), rates, eta=0.05, decay=0.1, **fields)
    np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)


def test_sums_of_gradients_and_of_updates_differ_only_if_rates_do(run, start):
    """With momentum 0.5 after a rate that falls to a half, the second step is 1.0 or 0.75 times."""
    value, grads = start((4, 3)), [np.ones((4, 3), np.float32)] * 2

    def move(accumulate, end):
        schedule = LinearRate.params(num_steps=1, end=end)
        params = Lars.params(
            learning_rate=0.1,
            schedule=schedule,
            momentum=0.5,
            accumulate=accumulate,
            min_ratio_rank=3,
        )
        return value - run(params, value, grads)[0]

    for accumulate in ("gradients", "updates"):
        np.testing.assert_allclose(move(accumulate, 1.0), 0.25, rtol=1e-5)
    np.testing.assert_allclose(move("gradients", 0.5), 0.1 + 0.05 * 1.5, rtol=1e-5)
    np.testing.assert_allclose(move("updates", 0.5), 0.1 + 0.05 + 0.05, rtol=1e-5)


@pytest.mark.parametrize("cls", [Lamb, Lars])
def test_the_size_of_a_gradient_does_not_matter(cls, run, start, gradients):
    params = cls.params(learning_rate=0.1, weight_decay=0.0)
    params.set(epsilon=0.0)
    grads = gradients((4, 3))
    small, _ = run(params, start((4, 3)), grads)
    large, _ = run(params, start((4, 3)), [1024 * grad for grad in grads])
    np.testing.assert_allclose(large, small, rtol=2e-6, atol=1e-6)


def test_biases_neither_decay_nor_have_a_ratio(run, start, gradients):
    """A bias is trained as by plain momentum; the first step of LAMB has the size of the rate."""
    value, grad = start((3,)), gradients((3,), 1)
    lars = Lars.params(learning_rate=0.1, weight_decay=0.5)
    np.testing.assert_allclose(run(lars, value, grad)[0], value - 0.1 * grad[0], rtol=1e-6)
    lamb = Lamb.params(learning_rate=0.1, weight_decay=0.5)
    expected = value - 0.1 * np.sign(grad[0])
    np.testing.assert_allclose(run(lamb, value, grad)[0], expected, rtol=1e-4)


def test_patterns_take_ratio_and_decay_from_single_layers_of_a_stack(run, start, gradients):
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 4, 3), 1)
    params = Lars.params(learning_rate=0.1, weight_decay=0.5, no_ratio=["l/1/w"])
    params.set(no_decay=["l/1/w"])
    value, grads = start((2, 4, 3)), gradients((2, 4, 3), 1)
    weight, _ = run(params, value, grads, stack)
    np.testing.assert_allclose(weight[1], value[1] - 0.1 * grads[0][1], rtol=1e-6)
    one = Lars.params(learning_rate=0.1, weight_decay=0.5)
    np.testing.assert_allclose(weight[0], run(one, value[0], [grads[0][0]])[0], rtol=1e-6)


def test_a_pattern_that_names_no_weight_is_refused():
    lars = Lars.params(learning_rate=0.1, no_ratio=["l/3/w"]).build()
    with pytest.raises(ParamError, match="l/3/w"):
        lars.check_weights([Weight("l/0/w", ("l/0/w",), (4, 3))])
    with pytest.raises(ParamError, match="is not a regular expression"):
        Lamb.params(learning_rate=0.1, no_ratio=["("]).build()


@pytest.mark.parametrize("cls", [Lamb, Lars])
def test_a_weight_or_gradient_of_zeros_has_ratio_1(cls, run, start, gradients):
    zeros, grads = np.zeros((4, 3), np.float32), gradients((4, 3), 1)
    params = cls.params(learning_rate=0.1, weight_decay=0.0)
    moved, _ = run(params, zeros, grads)
    expected = -0.1 * (grads[0] if cls is Lars else np.sign(grads[0]))
    np.testing.assert_allclose(moved, expected, rtol=1e-4)
    np.testing.assert_array_equal(run(params, start((4, 3)), [zeros])[0], start((4, 3)))


def test_lamb_limits_the_norm_of_a_weight_in_its_ratio(run, start, gradients):
    value, grads = start((4, 3)), gradients((4, 3), 1)
    norm = np.sqrt((value**2).sum())

    def size(**limits):
        params = Lamb.params(learning_rate=0.1, weight_decay=0.0, **limits)
        return np.sqrt(((run(params, value, grads)[0] - value) ** 2).sum())

    np.testing.assert_allclose(size(), 0.1 * norm, rtol=1e-5)
    np.testing.assert_allclose(size(max_norm=0.5), 0.1 * 0.5, rtol=1e-5)
    np.testing.assert_allclose(size(min_norm=100.0), 0.1 * 100.0, rtol=1e-5)


def test_without_bias_correction_lambs_first_means_are_small(run, start, gradients):
    """The ratio makes the sizes equal; only epsilon sees the difference."""
    value, grads = start((3,)), gradients((3,), 1)
    params = Lamb.params(learning_rate=0.1, bias_correction=False, epsilon=0.0)
    step = 0.1 * (0.1 / 0.001**0.5) * np.sign(grads[0])
    np.testing.assert_allclose(run(params, value, grads)[0], value - step, rtol=1e-4)
