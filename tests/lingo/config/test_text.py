"""Claims about resolved text."""

from __future__ import annotations

from typing import Any

from lingo.config import text
from lingo.config.overrides import apply
from lingo.config.text import Line


def lines(params: Any) -> dict[str, Line]:
    return {line.path: line for line in text.resolve(params)}


def test_every_leaf_has_a_line_with_class_names_and_origins(toys: Any) -> None:
    toy = toys.Toy.params(name="a  # default", eval_inputs={})
    toy.model.layer = toys.FeedForward.params(dropout_rate=1 / 3)
    assert text.render(text.resolve(toy)) == (
        "class = conftest.py:Toy\n"
        "eval_inputs = {}\n"
        "max_steps = 100  # default\n"
        "model = conftest.py:Stack\n"
        "model.dim = 8\n"
        "model.dtype = 'float32'  # default\n"
        "model.layer = conftest.py:FeedForward\n"
        "model.layer.activation = 'relu'  # default\n"
        "model.layer.dim = 8  # inherited from Stack\n"
        "model.layer.dropout_rate = 0.3333333333333333\n"
        "model.layer.dtype = 'float32'  # default\n"
        "model.layer.hidden_dim = None  # default\n"
        "model.layer.norm = conftest.py:Norm  # default\n"
        "model.layer.norm.dim = 8  # inherited from FeedForward\n"
        "model.layer.norm.dtype = 'float32'  # default\n"
        "model.layer.norm.epsilon = 1e-06  # default\n"
        "model.num_layers = 2  # default\n"
        "name = 'a  # default'\n"
        "optimizer = conftest.py:Adam  # default\n"
        "optimizer.betas = (0.9, 0.95)  # default\n"
        "optimizer.learning_rate = 0.001  # default\n"
        "shuffle = True  # default\n"
    )


def test_classes_of_lingo_go_by_their_name() -> None:
    from lingo.layers.linear import Linear

    assert text.value_text(Linear.params()) == "Linear"


def test_builds_that_differ_are_joined(toys: Any) -> None:
    found = lines(toys.Funnel.params(dim=8))
    assert str(found["layer.dim"]) == "layer.dim = 8 | 4  # inherited from Funnel"


def test_settings_of_an_untouched_default_template_are_defaults(toys: Any) -> None:
    toy = toys.Toy.params()
    assert lines(toy)["model.layer.feed_forward.activation"].origin == "default"
    toy.model.layer.feed_forward.dropout_rate = 0.5
    assert lines(toy)["model.layer.feed_forward.activation"].origin == ""
    assert lines(toy)["model.layer.feed_forward"].origin == ""
    assert lines(toy)["model.layer.attention"].origin == "default"


def test_inherited_params_are_shown_where_they_come_from(toys: Any) -> None:
    found = lines(toys.Tied.params(norm=toys.LayerNorm.params(center=False)))
    assert str(found["child.norm"]) == "child.norm = conftest.py:LayerNorm  # inherited from Tied"
    assert found["norm.center"].value == "False"
    assert not any(path.startswith("child.norm.") for path in found)


def test_parts_that_nothing_builds_appear_as_they_are(toys: Any) -> None:
    toy = toys.Toy.params(
        model=toys.Attention.params(dim=8, positions=toys.Rotary.params(theta=3.0))
    )
    assert str(lines(toy)["model.positions.theta"]) == "model.positions.theta = 3.0"
    assert "model.dim" not in {line.path for line in text.flatten(toys.Attention.params())}


def test_indices_sort_as_numbers(toys: Any) -> None:
    stack = toys.Stack.params(dim=1, num_layers=11, layer=[toys.Rotary] * 11)
    paths = [line.path for line in text.resolve(stack) if line.path.endswith("]")]
    assert paths == [f"layer[{i}]" for i in range(11)]
    other = stack.copy()
    other.layer = [toys.Rotary.params(theta=2.0)] * 11
    changed = [c.path for c in text.diff(text.flatten(stack), text.flatten(other))]
    assert changed == [f"layer[{i}].theta" for i in range(11)]


def test_rendered_text_reads_back(toys: Any, random_tree: Any) -> None:
    for seed in range(20):
        found = text.resolve(random_tree(seed))
        read = text.read(text.render(found))
        assert [line._replace(operational=False) for line in found] == read


def test_diff_tells_what_changed_and_what_may(toys: Any) -> None:
    before, after = toys.Toy.params(), toys.Toy.params()
    apply(after, ["max_steps=200", "Attention.positions=Rotary", "optimizer=Optimizer"])
    changes = text.diff(text.resolve(before), text.resolve(after))
    assert [str(c) for c in changes] == [
        "max_steps: 100 -> 200",
        "model.layer.attention.positions: None -> conftest.py:Rotary",
        "model.layer.attention.positions.dtype: (absent) -> 'float32'",
        "model.layer.attention.positions.theta: (absent) -> 10000.0",
        "optimizer: conftest.py:Adam -> conftest.py:Optimizer",
        "optimizer.betas: (0.9, 0.95) -> (absent)",
    ]
    assert [c.operational for c in changes] == [True, False, False, False, False, False]


def test_everything_below_an_operational_field_is_operational(toys: Any) -> None:
    before = text.resolve(toys.Tuned.params())
    after = text.resolve(toys.Tuned.params(input=toys.Input.params(weights={"a": 1.0}, sizes=[1])))
    assert all(line.operational for line in after if line.path.startswith("input"))
    assert {c.operational for c in text.diff(text.read(text.render(before)), after)} == {True}


def test_the_digest_sees_values_not_origins(toys: Any) -> None:
    trees = [toys.Toy.params(**values) for values in ({}, {"max_steps": 100}, {"max_steps": 101})]
    digests = [text.digest(text.resolve(tree)) for tree in trees]
    assert digests[0] == digests[1] != digests[2]
