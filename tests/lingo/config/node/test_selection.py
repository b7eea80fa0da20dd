"""Claims about changing all Params of a class together."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from lingo.config.node.tree import same
from lingo.config.params import ParamError


def test_a_selection_holds_subclasses_and_each_node_once(toys: Any) -> None:
    shared = toys.Norm.params()
    pair = toys.Stack.params(
        layer=[toys.FeedForward.params(norm=shared), toys.Gated.params(norm=shared)]
    )
    assert len(pair.all(toys.FeedForward)) == 2
    assert [node is shared for node in pair.all(toys.Norm)] == [True]


def test_set_copies_params_for_each(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Stack.params(layer=[toys.Block, toys.Block]))
    toy.all(toys.Attention).set(positions=toys.Rotary.params(theta=3.0))
    first, second = toy.all(toys.Rotary)
    first.theta = 4.0
    assert second.theta == 3.0


def test_swap_keeps_what_applies_and_tells_what_it_dropped(toys: Any) -> None:
    toy = toys.Toy.params()
    block = toy.model.layer
    block.feed_forward.set(hidden_dim=5, dropout_rate=0.5)
    with pytest.warns(UserWarning, match=r"^dropped: .*activation = 'gelu': .*; .*hid") as told:
        selection = toy.all(toys.FeedForward).swap(toys.MoE, num_experts=2)
    lines = inspect.getsource(test_swap_keeps_what_applies_and_tells_what_it_dropped).splitlines()
    start = test_swap_keeps_what_applies_and_tells_what_it_dropped.__code__.co_firstlineno
    assert [one.filename for one in told] == [__file__]
    assert ".swap(" in lines[told[0].lineno - start]
    assert block.feed_forward.cls is toys.MoE
    assert (block.feed_forward.dropout_rate, block.feed_forward.num_experts) == (0.5, 2)
    assert block.feed_forward.expert.cls is toys.FeedForward
    assert selection.dropped_values == [
        "model.layer.feed_forward.activation = 'gelu': conftest.py:MoE has no such field",
        "model.layer.feed_forward.hidden_dim = 5: conftest.py:MoE has no such field",
    ]


def test_swap_keeps_history(toys: Any) -> None:
    node = toys.FeedForward.params(dropout_rate=0.5)
    before = node.__argument_history__["dropout_rate"]
    node.all(toys.FeedForward).swap(toys.MoE)
    assert node.__argument_history__["dropout_rate"] == before


def test_swap_replaces_untouched_templates_but_keeps_what_was_set_inside(toys: Any) -> None:
    plain, touched = toys.FeedForward.params(), toys.FeedForward.params()
    touched.norm.epsilon = 0.25
    for node in (plain, touched):
        node.all(toys.FeedForward).swap(toys.Gated)
    assert same(plain.norm, toys.LayerNorm.params())
    assert (touched.norm.cls, touched.norm.epsilon) == (toys.LayerNorm, 0.25)


def test_swap_keeps_a_template_of_another_class_that_was_set(toys: Any) -> None:
    node = toys.Gated.params(norm=toys.Norm.params(epsilon=0.25))
    node.all(toys.Gated).swap(toys.FeedForward)
    assert (node.norm.cls, node.norm.epsilon) == (toys.Norm, 0.25)


def test_swap_drops_a_value_of_the_wrong_type(toys: Any) -> None:
    class Odd(toys.Layer):
        hidden_dim: str = ""

    node = toys.FeedForward.params(hidden_dim=3)
    with pytest.warns(UserWarning, match=r"dropped: hidden_dim = 3: .* takes str, got 3 \(int\)$"):
        node.all(toys.FeedForward).swap(Odd)


def test_swap_happens_in_place(toys: Any) -> None:
    node = toys.FeedForward.params()
    toy = toys.Toy.params(model=toys.Stack.params(layer=[node, node]))
    toy.all(toys.FeedForward).swap(toys.MoE)
    assert toy.model.layer[0] is toy.model.layer[1] is node
    assert node.cls is toys.MoE


def test_swap_across_kinds_is_refused_and_changes_nothing(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Remat.params(layer=toys.Block))
    before = toy.copy()
    with pytest.raises(ParamError, match=r"optimizer: .*takes an Optimizer, got Block"):
        toy.all(toys.Optimizer).swap(toys.Block)
    message = r"model\.layer: .*Adam cannot replace .*Block: it is an Optimizer, not a Layer"
    with pytest.raises(ParamError, match=message):
        toy.all(toys.Block).swap(toys.Adam)
    assert same(toy, before)


def test_wrap_puts_the_old_inside(toys: Any) -> None:
    toy = toys.Toy.params()
    block = toy.model.layer
    block.dim = 3
    wrappers = toy.all(toys.Block).wrap(toys.Remat, "layer", policy="none")
    assert toy.model.layer is block is wrappers[0]
    assert (block.cls, block.policy) == (toys.Remat, "none")
    assert (block.layer.cls, block.layer.dim) == (toys.Block, 3)


def test_wrap_sets_values_also_on_existing_wrappers(toys: Any) -> None:
    toy = toys.Toy.params(model=toys.Remat.params(layer=toys.Stack))
    toy.all(toys.Stack).wrap(toys.Remat, "layer", policy="none")
    assert (toy.model.policy, toy.model.layer.cls) == ("none", toys.Stack)


def test_nested_matches_are_each_wrapped(toys: Any) -> None:
    stack = toys.Stack.params(layer=toys.Stack.params(layer=toys.Norm))
    stack.all(toys.Stack).wrap(toys.Remat, "layer")
    assert stack.layer.layer.cls is toys.Remat
    assert stack.layer.layer.layer.layer.cls is toys.Norm


@pytest.mark.parametrize(
    ("cls", "field", "message"),
    [
        ("Remat", "lyer", "no field 'lyer'. Did you mean 'layer'"),
        ("Adam", "betas", "takes"),
        ("MoE", "num_experts", "takes int"),
    ],
)
def test_a_wrapper_that_cannot_hold_it_is_refused_and_changes_nothing(toys, cls, field, message):
    toy = toys.Toy.params()
    before = toy.copy()
    with pytest.raises(ParamError, match=message):
        toy.all(toys.Block).wrap(getattr(toys, cls), field)
    assert same(toy, before)


def test_parameters_of_what_is_built_are_not_swapped(toys: Any) -> None:
    built = toys.Norm.params(dim=3).build()
    with pytest.raises(ParamError, match="cannot change"):
        built.p.all(toys.Norm).swap(toys.LayerNorm)


def test_a_swap_inside_a_template_outweighs_an_inherited_value(toys: Any) -> None:
    parent = toys.Tied.params()
    parent.child.all(toys.Norm).swap(toys.LayerNorm)
    assert parent.build().child.p.norm.cls is toys.LayerNorm
