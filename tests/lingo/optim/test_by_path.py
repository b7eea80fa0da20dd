"""Groups of weights: each has its own optimizer, also inside one stacked tensor."""

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.optim.adam import Adam, AdamW
from lingo.optim.by_path import ByPath, Frozen
from lingo.optim.optimizer import Weight
from lingo.optim.schedule import LinearRate
from lingo.optim.sgd import Sgd

STACK = Weight("l/[0:3]/w", ("l/0/w", "l/1/w", "l/2/w"), (3, 2), 1)


def single(name):
    return Weight(name, (name,), (2,))


def test_layers_of_one_tensor_train_as_they_would_alone(run):
    params = ByPath.params(
        groups={
            "l/0/.*": Adam.params(learning_rate=0.1),
            "l/1/.*": Frozen,
            "l/2/.*": Sgd.params(learning_rate=0.5, momentum=0.9),
        }
    )
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    grad = np.ones((3, 2), np.float32)
    together, slots = run(params, value, [grad], STACK)
    for i in range(3):
        alone, kept = run(params, value[i], [grad[i]], single(f"l/{i}/w"))
        np.testing.assert_array_equal(together[i], alone)
        for slot in kept:
            np.testing.assert_array_equal(slots[slot][i], kept[slot])
    np.testing.assert_array_equal(together[1], value[1])
    np.testing.assert_array_equal(slots["m"][1:], np.zeros((2, 2)))  # of others they stay


def test_slots_name_the_weights_that_use_them():
    optimizer = ByPath.params(
        learning_rate=0.1,
        groups={"l/0/.*": Adam, "l/1/.*": Frozen, "l/2/.*": Adam.params(beta1=0.5)},
    ).build()
    slots = optimizer.slots(STACK)
    assert sorted(slots) == ["m", "v"]
    assert slots["m"].names == ("l/0/w", "l/2/w")
    assert optimizer.slots(single("l/1/w")) == {}
    assert optimizer.trainable_layers(STACK) == (True, False, True)


def test_groups_take_the_rate_and_schedule_they_do_not_set():
    optimizer = ByPath.params(
        learning_rate=0.5,
        schedule=LinearRate.params(num_steps=2),
        groups={"a": Sgd, "b": Sgd.params(learning_rate=0.25), "c": Frozen},
    ).build()
    rates = {"a": 0.25, "b": 0.125, "c": 0.0}
    expected = {f"learning_rate/{pattern}": rate for pattern, rate in rates.items()}
    assert optimizer.rates(1) == {"learning_rate": 0.25} | expected
    assert optimizer.rates(tf.constant(1))["learning_rate"].numpy() == 0.25


def test_groups_take_the_weight_decay_they_do_not_set(run):
    params = ByPath.params(
        learning_rate=0.5,
        weight_decay=0.5,
        min_decay_rank=1,
        groups={"a": Sgd, "b": AdamW, "c": Sgd.params(weight_decay=0.0), "d": Frozen},
    )
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    for name, expected in {"a": 0.75, "b": 0.75, "c": 1.0, "d": 1.0}.items():
        after, _ = run(params, ones, [zeros], single(name))
        np.testing.assert_array_equal(after, np.full(2, expected))
    optimizer = ByPath.params(learning_rate=0.5, groups={"a": Sgd, "b": AdamW}).build()
    assert [group.p.weight_decay for group in optimizer.groups.values()] == [0.0, 0.01]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["l/0/.*"], "no group for the weight 'l/1/w'"),
        (["l/.*", ".*/2/w"], "2 groups for the weight 'l/2/w'"),
        (["l/.*", "head/.*"], "'head/.*' matches none of 3 weights"),
        (["w"], "'w' matches none of 3 weights"),
    ],
)
def test_every_weight_needs_exactly_one_group(patterns, message):
    optimizer = ByPath.params(learning_rate=0.1, groups=dict.fromkeys(patterns, Sgd)).build()
    with pytest.raises(ParamError, match=message):
        optimizer.check_weights([STACK])


def test_the_patterns_of_a_group_are_checked_against_its_own_weights():
    optimizer = ByPath.params(
        learning_rate=0.1, groups={"l/.*": Adam.params(no_decay=["head"]), "head": Sgd}
    ).build()
    with pytest.raises(ParamError, match="'head' matches none of 3 weights"):
        optimizer.check_weights([STACK, single("head")])


def test_slots_of_one_tensor_must_agree():
    class Scalar(Sgd):
        """Keeps one number a weight under the name of another's slot."""

        def slots(self, weight):
            return {"m": super().slots(weight)["momentum"]._replace(shape=weight.stack_shape)}

    groups = {"l/0/.*": Adam, "(?!l/0/).*": Scalar.params(momentum=0.5)}
    optimizer = ByPath.params(learning_rate=0.1, groups=groups).build()
    with pytest.raises(ParamError, match="two groups want different slots 'm'"):
        optimizer.check_weights([STACK])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": {}}, "groups is empty"),
        ({"groups": {"(": Sgd}}, "is not a regular expression"),
        ({"groups": {".*": Sgd.params(max_grad_norm=1.0)}}, "max_grad_norm is for all weights"),
        ({"groups": {".*": Sgd.params(ema_decay=0.9)}}, "ema_decay is for all weights"),
        ({"groups": {".*": Sgd.params(ema_warmup=True)}}, "ema_warmup is for all weights"),
        ({"groups": {".*": ByPath.params(groups={".*": Sgd})}}, "is a ByPath"),
        ({"groups": {".*": Sgd}, "no_decay": ["a"]}, "set it on a group"),
        ({"groups": {".*": Sgd}, "learning_rate": None}, "Sgd needs learning_rate"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        ByPath.params(**{"learning_rate": 0.1} | fields).build()
