"""What routers share where tokens choose: who comes first, and what imbalance costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.layers.moe.token_choice import (
    GShardRouter,
    LingvoRouter,
    SwitchRouter,
    TokenChoiceRouter,
    TopNRouter,
)

E = 2
LOGITS = np.array([[[1, 0], [3, 0], [2, 0], [0, 1]]], "f")


def test_by_gate_the_surest_tokens_get_the_slots(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E, priority="gate").build()
    found = route(router, LOGITS, capacity=2)
    np.testing.assert_array_equal(found.slot[0, :, 0], [-1, 0, 1, 0])


def test_by_gate_first_choices_still_come_before_all_second_ones(route: Callable) -> None:
    router = TopNRouter.params(dim=E, num_experts=E, priority="gate").build()
    found = route(router, LOGITS, capacity=4)
    np.testing.assert_array_equal(found.slot[0], [[2, 3], [0, 1], [1, 2], [0, 3]])


def test_by_gate_padding_takes_no_slot_however_sure(route: Callable) -> None:
    router = SwitchRouter.params(dim=E, num_experts=E, priority="gate").build()
    found = route(router, LOGITS, valid=np.array([[True, False, True, True]]), capacity=1)
    np.testing.assert_array_equal(found.slot[0, :, 0], [-1, -1, 0, 0])


def test_the_two_scales_of_the_balance_loss(route: Callable) -> None:
    def loss(**fields: object) -> float:
        router = SwitchRouter.params(dim=E, num_experts=E, balance_loss=1.0, **fields).build()
        return float(route(router, LOGITS, capacity=1).sides.losses["moe_balance"])

    f = np.array([3 / 4, 1 / 4])
    mean = (np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True))[0].mean(0)
    assert loss() == pytest.approx(E * (f * mean).sum())
    assert loss(balance_scale="gshard") == pytest.approx((f * mean).sum() / E)


@pytest.mark.parametrize("cls", [TopNRouter, GShardRouter, LingvoRouter])
def test_fewer_experts_than_choices_are_refused(cls: type[TokenChoiceRouter]) -> None:
    with pytest.raises(ParamError, match=r"num_experts=1 is less than the 2 that a \w+Router"):
        cls.params(dim=1, num_experts=1).build()
