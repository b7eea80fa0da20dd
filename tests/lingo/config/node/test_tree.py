"""Claims about trees of parameters."""

from __future__ import annotations

from typing import Any

from lingo.config.node.tree import items, nodes, same, walk


def test_same_tells_types_and_what_was_set_apart(toys: Any) -> None:
    norm = toys.Norm
    assert same(norm.params(dim=1), norm.params(dim=1))
    assert not same(norm.params(epsilon=1e-6), norm.params())
    assert not same(norm.params(), toys.LayerNorm.params())
    for a, b in (
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        (None, False),
    ):
        assert not same(a, b)
        assert not same([a], [b])


def test_walking_finds_params_with_their_paths(toys: Any) -> None:
    stack = toys.Stack.params(layer=[toys.Norm, toys.FeedForward])
    assert [path for path, _ in walk(stack)] == ["", "layer[0]", "layer[1]", "layer[1].norm"]
    assert [id(n) for n in nodes(stack)] == [id(n) for _, n in walk(stack)]
    assert [part for part, _ in items({"a": 1})] == ["['a']"]
    assert items(3) == ()
