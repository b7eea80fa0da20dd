"""Claims about parameter objects and the classes that declare them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lingo.config.node.tree import same
from lingo.config.params import Configurable, ParamError, fields


def test_params_read_and_set_as_attributes(toys: Any) -> None:
    node = toys.FeedForward.params(dim=3)
    node.dropout_rate = 1
    assert (node.dim, node.dropout_rate, node.hidden_dim) == (3, 1.0, None)
    assert node.set(hidden_dim=4) is node
    assert node.hidden_dim == 4
    with pytest.raises(ParamError, match=r"Norm\.dim is not set"):
        _ = toys.Norm.params().dim
    assert not hasattr(toys.Norm.params(), "dim")


def test_paths_lead_to_values_and_names_are_listed(toys: Any) -> None:
    cfg = toys.Block.params(feed_forward=toys.FeedForward.params(dim=3))
    assert cfg["feed_forward.dim"] == 3
    cfg["feed_forward.dim"] = 4
    assert cfg.feed_forward.dim == 4
    assert cfg["feed_forward"] is cfg.feed_forward
    assert [*cfg] == [*fields(toys.Block)]
    assert {"feed_forward", "set", "copy", "build"} <= {*dir(cfg)}
    assert not any(name.startswith("_") for name in dir(cfg))
    with pytest.raises(ParamError, match=r"Did you mean 'dim'"):
        _ = cfg["feed_forward.dmi"]
    with pytest.raises(ParamError, match=r"takes int, got 'a'"):
        cfg["feed_forward.dim"] = "a"
    with pytest.raises(ParamError, match=r"Norm\.dim is not set"):
        _ = toys.Norm.params()["dim"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dmi", 3, r"FeedForward has no field 'dmi'. Did you mean 'dim'\? Fields: dtype, dim"),
        ("dim", 3.0, r"FeedForward.dim takes int, got 3.0 \(float\)"),
        ("dim", True, r"got True \(bool\)"),
        ("activation", "gleu", "takes one of 'relu', 'gelu'"),
        ("norm", 3, r"FeedForward.norm takes a Layer such as Norm, got 3"),
        ("dropout_rate", float("nan"), "takes float, got nan"),
    ],
)
def test_a_mistake_is_found_when_it_is_made(toys: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message) as caught:
        toys.FeedForward.params(**{name: value})
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, ValueError)


def test_a_class_of_several_bases_has_the_fields_of_all_nearest_first() -> None:
    class Base(Configurable):
        size: int = 1

    class Left(Base):
        left: int = 2

    class Right(Base):
        size: int = 3
        right: int = 4

    class Both(Left, Right):
        own: int = 5

    node = Both.params()
    values = {n: getattr(node, n) for n in fields(Both)}
    assert values == {"size": 3, "left": 2, "right": 4, "own": 5}


def test_a_deleted_field_is_its_default_again(toys: Any) -> None:
    node = toys.FeedForward.params(dropout_rate=0.5, norm=toys.LayerNorm)
    del node.dropout_rate, node.norm
    assert (node.dropout_rate, node.norm.cls, node.is_given("norm")) == (0.0, toys.Norm, False)


def test_templates_and_containers_are_not_shared_between_params(toys: Any) -> None:
    first, second = toys.Toy.params(), toys.Toy.params()
    first.optimizer.learning_rate = 0.5
    first.eval_inputs["new"] = toys.Input.params()
    for other in (second, toys.Toy.params()):
        assert (other.optimizer.learning_rate, list(other.eval_inputs)) == (1e-3, ["heldout"])


def test_a_template_changed_inside_counts_as_given(toys: Any) -> None:
    block = toys.Block.params()
    assert not block.is_given("feed_forward")
    block.feed_forward.norm.epsilon = 0.5
    assert block.is_given("feed_forward")
    assert not block.is_given("attention")


def test_params_cannot_contain_themselves(toys: Any) -> None:
    node = toys.Remat.params()
    with pytest.raises(ParamError, match=r"Remat\.layer cannot contain itself"):
        node.layer = toys.Remat.params(layer=node)


def test_a_copy_shares_nothing_but_keeps_what_is_shared_inside(toys: Any) -> None:
    norm = toys.Norm.params()
    stack = toys.Stack.params(layer=[norm, norm])
    for other in (stack.copy(), copy.copy(stack), copy.deepcopy(stack)):
        assert same(other, stack)
        assert other.layer[0] is other.layer[1] is not norm


# ---- classes


def test_a_default_is_no_class_attribute(toys: Any) -> None:
    built = toys.Norm.params(dim=3).build()
    assert not hasattr(toys.Norm, "epsilon")
    with pytest.raises(AttributeError, match=r"Norm.epsilon is a parameter: read self.p.epsilon"):
        _ = built.epsilon
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = built.nothing


@pytest.mark.parametrize(
    "name", ["build", "copy", "set", "all", "cls", "check", "setup", "p", "params"]
)
def test_names_that_are_taken_are_refused_as_fields(name: str) -> None:
    with pytest.raises(TypeError, match="the name is taken"):
        type("Bad", (Configurable,), {"__annotations__": {name: "int"}})


def test_a_type_that_cannot_be_found_is_named(toys: Any) -> None:
    body = {"__annotations__": {"x": "Nowhere"}, "__module__": __name__}
    bad = type("Bad", (Configurable,), body)
    message = r"Bad.x: name 'Nowhere' is not defined, in its type 'Nowhere'"
    with pytest.raises(ParamError, match=message):
        bad.params(x=3)


def test_a_class_is_built_from_params_only(toys: Any) -> None:
    with pytest.raises(TypeError, match=r"is built from parameters: Norm.params\(...\).build\(\)"):
        toys.Norm(dim=3)


def test_long_words_and_numbers_are_not_compared_or_written(toys: Any) -> None:
    with pytest.raises(ParamError) as caught:
        setattr(toys.Norm.params(), "dim" * 1000, 3)
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(ParamError, match=r"takes int, got a number of many digits .*64 bits"):
        toys.Norm.params(dim=10**5000)
