"""The call context: side outputs add, and annotations reach the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.layers import Linear, Stack, context
from lingo.layers.context import Call, SideOutputs, annotate


def test_side_outputs_of_one_name_add_and_others_stand_beside_each_other() -> None:
    sides = SideOutputs()
    for value in (1.0, 2.0):
        sides.add({"losses": {"a": value}, "metrics": {"m": {"sum": value, "weight": 1.0}}})
    sides.add({"losses": {"b": 5.0}})
    assert sides.losses == {"a": 3.0, "b": 5.0}
    assert sides.metrics == {"m": {"sum": 3.0, "weight": 2.0}}


def test_a_derived_context_has_side_outputs_of_its_own() -> None:
    outer = Call({"w": 1}, training=True)
    inner = outer.derive(weights={"w": 2})
    inner.sides.add({"losses": {"a": 1.0}})
    assert (inner.weights, inner.training, outer.weights) == ({"w": 2}, True, {"w": 1})
    assert outer.sides.losses == {}


def test_the_context_before_is_back_after_an_error() -> None:
    outer = Call({})
    with context.enter_call(outer):
        with pytest.raises(ZeroDivisionError), context.enter_call(Call({})):
            1 / 0  # noqa: B018
        assert context.current() is outer
    with pytest.raises(RuntimeError, match="only in a call"):
        context.current()


def test_the_tensors_of_a_layer_are_its_own_and_those_below() -> None:
    stack = Stack.params(layer=Linear.params(dim=1, output_dim=1), num_layers=11).build()
    call = Call({name: name for name in stack.weights()})
    assert set(call.of([stack.layers[1]])["weights"]) == {"layers/1/w"}
    assert call.of([stack])["weights"] == call.weights


def test_annotations_hand_the_rules_all_axes_lifted_ones_first() -> None:
    asked = []

    class Asked:
        def activation(self, x: Any, axes: tuple[str | None, ...]) -> Any:
            asked.append(axes)
            return x + 1

        weight = activation

    x = tf.zeros([2, 3])
    with context.enter_call(Call({}, rules=Asked(), mapped_axes=("stage", "expert"))):
        np.testing.assert_array_equal(annotate(x, "batch", None), x + 1)
    assert asked == [("stage", "expert", "batch", None)]


def test_annotations_without_rules_change_nothing() -> None:
    x = tf.zeros([2, 3])
    with context.enter_call(Call({})):
        assert annotate(x, "batch", None) is x


@pytest.mark.parametrize("axes", [("batch",), ("batch", None, None)])
def test_annotations_name_every_axis_once(axes: tuple[str | None, ...]) -> None:
    with (
        context.enter_call(Call({})),
        pytest.raises(ValueError, match=rf"{len(axes)} axes .* shape \(2, 3\)"),
    ):
        annotate(tf.zeros([2, 3]), *axes)
