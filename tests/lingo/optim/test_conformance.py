"""What every optimizer class promises, tested on every optimizer class there is.

A new class makes `test_every_optimizer_class_has_a_case` fail until it has an example here.
"""

import importlib
import pathlib

import keras
import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.optim.adadelta import AdaDelta
from lingo.optim.adafactor import Adafactor
from lingo.optim.adagrad import Adagrad
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.layerwise import Lamb, Lars, LayerwiseOptimizer
from lingo.optim.lion import Lion
from lingo.optim.matrix import MatrixOptimizer
from lingo.optim.muon import Muon
from lingo.optim.optimizer import Optimizer, Update, Weight
from lingo.optim.rmsprop import RmsProp
from lingo.optim.schedule import Exponential, LinearRate
from lingo.optim.sgd import Momentum, Sgd
from lingo.optim.shampoo import Shampoo

ROOT = pathlib.Path(__file__).parents[3]

CASES = {
    AdaDelta: AdaDelta.params(learning_rate=0.1),
    Adafactor: Adafactor.params(learning_rate=0.1, beta1=0.5),
    Adagrad: Adagrad.params(learning_rate=0.1),
    Adam: Adam.params(learning_rate=0.1),
    AdamW: AdamW.params(learning_rate=0.1),
    ByPath: ByPath.params(learning_rate=0.1, groups={".*": Adam}),
    Frozen: Frozen.params(),
    Lamb: Lamb.params(learning_rate=0.1),
    Lars: Lars.params(learning_rate=0.1, trust_coefficient=0.1),
    Lion: Lion.params(learning_rate=0.1),
    Momentum: Momentum.params(learning_rate=0.1, nesterov=True),
    Muon: Muon.params(learning_rate=0.1),
    RmsProp: RmsProp.params(learning_rate=0.1, centered=True, momentum=0.5),
    Sgd: Sgd.params(learning_rate=0.1),
    Shampoo: Shampoo.params(learning_rate=0.1, root_steps=2),
}
SUM_UPDATES = (
    Adafactor,
    Lars,
    RmsProp,
)  # what they keep already has the rates of earlier steps in it
MOVING = {cls: params for cls, params in CASES.items() if cls is not Frozen}

SCHEDULES, ORACLES = keras.optimizers.schedules, keras.optimizers
RMSPROP = {"rho": 0.8, "epsilon": 1e-3}
AS_KERAS = [
    *(
        (
            AdaDelta.params(learning_rate=rate, rho=0.9, epsilon=1e-5),
            ORACLES.Adadelta(rate, rho=0.9, epsilon=1e-5),
        )
        for rate in (1.0, 0.1)
    ),
    (
        Adagrad.params(learning_rate=0.1, initial_accumulator_value=0.0),
        ORACLES.Adagrad(0.1, initial_accumulator_value=0.0),
    ),
    (Adam.params(learning_rate=0.01), ORACLES.Adam(0.01)),
    (
        AdamW.params(learning_rate=0.01, beta2=0.99, weight_decay=0.1, epsilon=1e-6),
        ORACLES.AdamW(0.01, beta_2=0.99, weight_decay=0.1, epsilon=1e-6),
    ),
    (Lamb.params(learning_rate=0.01, weight_decay=0.0), ORACLES.Lamb(0.01, epsilon=1e-6)),
    (
        Lion.params(learning_rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.5),
        ORACLES.Lion(0.01, beta_1=0.8, beta_2=0.95, weight_decay=0.5),
    ),
    *(
        (RmsProp.params(learning_rate=0.01, **options), ORACLES.RMSprop(0.01, **options))
        for options in (
            RMSPROP,
            RMSPROP | {"momentum": 0.9},
            RMSPROP | {"centered": True},
            RMSPROP | {"momentum": 0.9, "centered": True},
        )
    ),
    (
        RmsProp.params(
            learning_rate=0.01,
            momentum=0.9,
            schedule=Exponential.params(num_steps=3, decay_rate=0.5, staircase=True),
        ),
        ORACLES.RMSprop(SCHEDULES.ExponentialDecay(0.01, 3, 0.5, staircase=True), momentum=0.9),
    ),
    *(
        (
            Muon.params(
                learning_rate=0.01,
                weight_decay=0.1,
                nesterov=nesterov,
                root_mean_square=size,
                num_iterations=6,
            ),
            ORACLES.Muon(0.01, weight_decay=0.1, nesterov=nesterov, rms_rate=size, ns_steps=6),
        )
        for nesterov in (False, True)
        for size in (0.2, None)
    ),
    (Sgd.params(learning_rate=0.01), ORACLES.SGD(0.01)),
    *(
        (
            Momentum.params(learning_rate=0.01, nesterov=nesterov, accumulate=accumulate),
            ORACLES.SGD(0.01, momentum=0.9, nesterov=nesterov),
        )
        for nesterov in (False, True)
        for accumulate in ("gradients", "updates")
    ),
    (
        Momentum.params(learning_rate=0.1, weight_decay=0.2),
        ORACLES.SGD(0.1, momentum=0.9, weight_decay=0.2),
    ),
    (
        Momentum.params(
            learning_rate=0.1,
            schedule=LinearRate.params(num_steps=10),
            nesterov=True,
            accumulate="updates",
        ),
        ORACLES.SGD(SCHEDULES.PolynomialDecay(0.1, 10, 0.0), momentum=0.9, nesterov=True),
    ),
]

over_all = pytest.mark.parametrize("params", CASES.values(), ids=[c.__name__ for c in CASES])
DECOUPLED = {cls: p for cls, p in MOVING.items() if not issubclass(cls, LayerwiseOptimizer)}

over_decoupled = pytest.mark.parametrize(
    "params", DECOUPLED.values(), ids=[c.__name__ for c in DECOUPLED]
)
over_moving = pytest.mark.parametrize("params", MOVING.values(), ids=[c.__name__ for c in MOVING])


def classes(cls=Optimizer):
    return {cls}.union(*(classes(sub) for sub in cls.__subclasses__()))


def test_every_optimizer_class_has_a_case():
    for file in (ROOT / "lingo" / "optim").glob("*.py"):
        importlib.import_module(f"lingo.optim.{file.stem}")
    found = {c for c in classes() if c.__module__.startswith("lingo.optim.")}
    assert found - {Optimizer, LayerwiseOptimizer, MatrixOptimizer} == set(CASES)


@pytest.mark.parametrize(
    ("params", "oracle"), AS_KERAS, ids=lambda x: x.cls.__name__ if hasattr(x, "cls") else ""
)
def test_equals_keras_over_20_steps(params, oracle, run, run_keras, start, gradients):
    ours, _ = run(params, start((4, 3)), gradients((4, 3)))
    expected = run_keras(oracle, start((4, 3)), gradients((4, 3)))
    tolerance = 2e-6 if params.cls is RmsProp else 1e-6
    np.testing.assert_allclose(ours, expected, atol=tolerance)


@over_all
@pytest.mark.parametrize("one", [(), (3,), (4, 3), (2, 4, 3)], ids=str)
def test_stacked_weights_train_as_separate_ones(params, one, run, start, gradients):
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, *one), 1)
    params = params.copy().set(weight_decay=0.5)
    value, grads = start((2, *one)), gradients((2, *one), 3)
    grads = [grad * np.reshape([1.0, 9.0], (2, *[1] * len(one))).astype("f") for grad in grads]
    together, slots = run(params, value, grads, stack)
    for i in range(2):
        alone, kept = run(params, value[i], [grad[i] for grad in grads])
        atol = (
            2e-6 if params.cls is Shampoo else 1e-7
        )  # a batch of eigenvectors is rounded otherwise
        np.testing.assert_allclose(together[i], alone, rtol=1e-6, atol=atol)
        assert {name: slot[i].shape for name, slot in slots.items()} == {
            name: slot.shape for name, slot in kept.items()
        }


@over_all
def test_slots_begin_with_the_stacked_axes_and_stay_as_declared(params, run, start, gradients):
    stack = Weight("l/[0:2]/w", ("l/0/w", "l/1/w"), (2, 4, 3), 1)
    declared = params.build().slots(stack)
    _, slots = run(params, start((2, 4, 3)), gradients((2, 4, 3), 1), stack)
    assert {name: slot.shape for name, slot in slots.items()} == {
        name: slot.shape for name, slot in declared.items()
    }
    assert all(slot.shape[0] == 2 and slot.names == stack.names for slot in declared.values())


@over_all
def test_compiled_by_xla_it_is_the_same(params, start, gradients):
    optimizer, weight = params.build(), Weight("w", ("w",), (4, 3))
    slots = {name: tf.fill(slot.shape, slot.fill) for name, slot in optimizer.slots(weight).items()}
    value, grad = tf.constant(start((4, 3))), tf.constant(gradients((4, 3), 1)[0])

    def update(step):
        rates = optimizer.rates(step)
        return optimizer.update(Update(weight, value, grad, slots, step, rates))

    step = tf.constant(3)
    compiled = tf.function(update, jit_compile=True, autograph=False)
    atol = 1e-5 if params.cls is Shampoo else 1e-6  # XLA finds eigenvectors by another algorithm
    np.testing.assert_allclose(compiled(step).value, update(step).value, rtol=1e-5, atol=atol)


@over_decoupled
def test_the_weight_shrinks_by_rate_times_weight_decay_whatever_the_gradient(params, run, start):
    value, still = start((4, 3)), [np.zeros((4, 3), np.float32)]
    for decay in (0.0, 0.25):
        after, _ = run(params.copy().set(weight_decay=decay), value, still)
        np.testing.assert_allclose(after, value * (1 - 0.1 * decay), rtol=1e-6)


@pytest.mark.parametrize(
    "params", [p for c, p in MOVING.items() if c not in SUM_UPDATES], ids=lambda p: p.cls.__name__
)
def test_a_rate_of_0_changes_no_weight(params, run, start, gradients):
    params = params.copy().set(weight_decay=0.5, schedule=LinearRate.params(num_steps=1))
    value, grads = start((4, 3)), gradients((4, 3), 3)
    np.testing.assert_array_equal(run(params, value, grads)[0], run(params, value, grads[:1])[0])


@over_all
@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("learning_rate", -1.0, "is negative"),
        ("learning_rate", 1e39, "is not finite in float32"),
        ("weight_decay", -1.0, "is negative"),
        ("min_decay_rank", -1, "is negative"),
        ("max_grad_norm", 0.0, "is not positive; None is its default"),
        ("discard_grad_norm", 0.0, "is not positive; None is its default"),
        ("max_weight_grad_norm", -1.0, "is not positive; None is its default"),
        ("max_grad_value", 0.0, "is not positive; None is its default"),
        ("ema_decay", 1.0, r"is not in \[0, 1\)"),
        ("ema_decay", -0.1, r"is not in \[0, 1\)"),
        ("ema_warmup", True, "needs ema_decay, which is None"),
        ("average_steps", 0, "is not positive; None is its default"),
        ("no_decay", ["("], "is not a regular expression"),
    ],
)
def test_values_out_of_range_are_refused(params, field, value, wrong):
    with pytest.raises(ParamError, match=wrong):
        params.copy().set(**{field: value}).build()


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (AdaDelta, {"rho": 1.0, "epsilon": 0.0}),
        (Adafactor, {"beta1": 1.0, "beta2_decay": 0.0, "clip_threshold": 0.0}),
        (Adafactor, {"epsilon1": -1.0, "epsilon2": -1.0}),
        (Adagrad, {"initial_accumulator_value": -1.0, "epsilon": -1.0}),
        (Adam, {"beta1": 1.0, "beta2": -0.5, "epsilon": -1.0}),
        (Lamb, {"beta1": 1.0, "beta2": -0.5, "epsilon": -1.0, "min_norm": -1.0, "max_norm": 0.0}),
        (Lars, {"momentum": 1.0, "trust_coefficient": 0.0, "epsilon": -1.0, "min_ratio_rank": -1}),
        (Lion, {"beta1": 1.0, "beta2": 1.0}),
        (Muon, {"momentum": 1.0, "num_iterations": 0, "root_mean_square": 0.0}),
        (Shampoo, {"statistics_decay": 1.5, "max_dim": 0, "root_steps": 0, "ridge": 0.0}),
        (RmsProp, {"rho": 1.0, "momentum": -0.5, "epsilon": -1.0, "initial_mean_square": -1.0}),
        (Sgd, {"momentum": 1.0}),
    ],
)
def test_constants_out_of_range_are_refused(cls, wrong):
    for field, value in wrong.items():
        with pytest.raises(ParamError, match=f"{field}={value}"):
            cls.params(learning_rate=0.1, **{field: value}).build()
