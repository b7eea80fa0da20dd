"""Claims about parameter objects and shallow building."""

from __future__ import annotations

import copy
from typing import Any

import fiddle as fdl
import pytest
from fiddle import graphviz, printing, selectors

from lingo.config.params import (
    MAX_PARTS,
    Configurable,
    ParamError,
    builds,
    fields,
    items,
    nodes,
    received,
    same,
    walk,
)


class Width(fdl.Tag):
    """Widths."""


def test_params_read_and_set_as_attributes(toys: Any) -> None:
    node = toys.FeedForward.params(dim=3)
    node.dropout_rate = 1
    assert (node.dim, node.dropout_rate, node.hidden_dim) == (3, 1.0, None)
    assert node.set(hidden_dim=4) is node
    assert node.hidden_dim == 4


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


def test_reading_a_required_field_that_nobody_set_is_an_error(toys: Any) -> None:
    with pytest.raises(ParamError, match=r"Norm\.dim is not set"):
        _ = toys.Norm.params().dim
    assert not hasattr(toys.Norm.params(), "dim")


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
    assert {n: getattr(node, n) for n in fields(Both)} == {
        "size": 3,
        "left": 2,
        "right": 4,
        "own": 5,
    }


def test_a_deleted_field_is_its_default_again(toys: Any) -> None:
    node = toys.FeedForward.params(dropout_rate=0.5, norm=toys.LayerNorm)
    del node.dropout_rate, node.norm
    assert (node.dropout_rate, node.norm.cls, node.is_given("norm")) == (0.0, toys.Norm, False)


def test_templates_are_not_shared_between_params(toys: Any) -> None:
    first, second = toys.Block.params(), toys.Block.params()
    first.feed_forward.dropout_rate = 0.5
    assert second.feed_forward.dropout_rate == toys.Block.params().feed_forward.dropout_rate == 0.0


def test_containers_are_not_shared_between_params(toys: Any) -> None:
    first, second = toys.Toy.params(), toys.Toy.params()
    first.eval_inputs["new"] = toys.Input.params()
    assert list(second.eval_inputs) == ["heldout"]


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


def test_tags_of_a_copy_are_its_own(toys: Any) -> None:
    first, second = toys.Norm.params(), toys.Norm.params()
    fdl.add_tag(first, "dim", Width)
    assert fdl.get_tags(first, "dim") == {Width}
    assert fdl.get_tags(second, "dim") == fdl.get_tags(toys.Norm.params(), "dim") == frozenset()


def test_tools_of_fiddle_work_on_params(toys: Any) -> None:
    toy = toys.Toy.params()
    assert "max_steps" in printing.as_str_flattened(toy)
    selectors.select(toy, toys.Norm).set(epsilon=0.5)
    assert toy.model.layer.feed_forward.norm.epsilon == 0.5
    assert "FeedForward" in graphviz.render(toy).source if hasattr(graphviz, "render") else True


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
    bad = type(
        "Bad", (Configurable,), {"__annotations__": {"x": "Nowhere"}, "__module__": __name__}
    )
    with pytest.raises(
        TypeError, match=r"Bad.x: name 'Nowhere' is not defined, in its type 'Nowhere'"
    ):
        bad.params(x=3)


def test_a_class_is_built_from_params_only(toys: Any) -> None:
    with pytest.raises(TypeError, match=r"is built from parameters: Norm.params\(...\).build\(\)"):
        toys.Norm(dim=3)


# ---- building


def test_offers_fill_what_nobody_set(toys: Any) -> None:
    node = toys.FeedForward.params(dropout_rate=0.5)
    built = node.build(dim=3, dropout_rate=0.1, unknown=7)
    assert (built.p.dim, built.p.dropout_rate, built.norm.p.dim) == (3, 0.5, 3)
    assert not node.is_given("dim")


def test_dtype_is_offered_downwards_by_itself(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.model.dtype = "bfloat16"
    toy.model.layer.feed_forward.norm.dtype = "float16"
    found = {b.path: b.params.dtype for b in builds(toy) if b.path.startswith("model")}
    assert found["model.layer.attention"] == "bfloat16"
    assert found["model.layer.feed_forward.norm"] == "float16"


def test_a_wrapper_hands_on_every_offer(toys: Any) -> None:
    stack = toys.Stack.params(
        dim=3, layer=toys.Remat.params(layer=toys.Remat.params(layer=toys.Norm))
    )
    (norm, *_) = [b for b in builds(stack) if b.params.cls is toys.Norm]
    assert (norm.path, norm.params.dim, norm.offers) == ("layer.layer.layer", 3, {"dim": "Stack"})


def test_a_field_that_nobody_set_names_who_could_offer_it(toys: Any) -> None:
    with pytest.raises(
        ParamError, match=r"^model: Norm needs dim: nobody set it, and Toy, which builds it"
    ):
        toys.Toy.params(model=toys.Norm).build()
    with pytest.raises(
        ParamError, match=r"^Norm: Norm needs dim: nobody set it, and it is built by itself"
    ):
        toys.Norm.params().build()


def test_an_offer_of_the_wrong_type_names_both(toys: Any) -> None:
    with pytest.raises(
        ParamError, match=r"the caller offers a wrong value: Norm.dim takes int, got 'x'"
    ):
        toys.Norm.params().build(dim="x")
    odd = type("Odd", (toys.Tied,), {"setup": lambda self: self.p.child.build(norm=toys.Adam)})
    with pytest.raises(
        ParamError,
        match=r"^child: Odd offers a wrong value: FeedForward.norm takes a Layer such as Norm",
    ):
        odd.params().build()


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_parent_has_cannot_be_set_otherwise_where_that_is_asked_for(
    toys: Any, wrapped: bool
) -> None:
    norm = toys.Norm.params(dim=3)
    inner = toys.Remat.params(layer=norm) if wrapped else norm
    assert toys.Stack.params(dim=4, layer=inner).build(), "a kind may allow it"
    strict = {"_fits_parent": True}
    child = type("Child", (toys.Norm,), strict).params(dim=3)
    inner = type("Inner", (toys.Remat,), strict).params(layer=child) if wrapped else child
    parent = type("Parent", (toys.Stack,), strict)
    path = "layer.layer" if wrapped else "layer"
    with pytest.raises(
        ParamError, match=rf"^{path}\.dim=3, but Parent, .* has dim=4: leave it out"
    ):
        parent.params(dim=4, layer=inner).build()
    assert parent.params(dim=3, layer=inner).build()


@pytest.mark.parametrize("num_layers", [MAX_PARTS, 2**62])
def test_a_tree_of_more_parts_than_can_be_built_in_time_is_refused(
    toys: Any, num_layers: int
) -> None:
    endless = type(
        "Endless",
        (toys.Stack,),
        {"setup": lambda self: [self.p.layer.build(dim=1) for _ in range(self.p.num_layers)]},
    )
    with pytest.raises(ParamError, match=r"^layer: the experiment has more than 50,000 parts"):
        endless.params(dim=1, layer=toys.Norm, num_layers=num_layers).build()


def test_long_words_are_compared_with_nothing(toys: Any) -> None:
    with pytest.raises(ParamError) as caught:
        setattr(toys.Norm.params(), "dim" * 1000, 3)
    assert "Did you mean" not in str(caught.value)


def test_a_number_of_more_digits_than_python_writes_is_refused(toys: Any) -> None:
    with pytest.raises(ParamError, match=r"takes int, got a number of many digits .*64 bits"):
        toys.Norm.params(dim=10**5000)


def test_what_is_built_shares_nothing_and_cannot_change(toys: Any) -> None:
    toy = toys.Toy.params()
    built = toy.build()
    toy.model.dim = 99
    assert built.p.model.dim == 8
    for change in (
        lambda p: setattr(p, "max_steps", 1),
        lambda p: setattr(p.model.layer, "dim", 1),
        lambda p: delattr(p, "max_steps"),
        lambda p: p.eval_inputs.clear(),
        lambda p: p.eval_inputs["heldout"].sizes.append(3),
    ):
        with pytest.raises(ParamError, match="cannot change"):
            change(built.p)
    thawed = built.p.copy()
    thawed.model.layer.dim = 1
    thawed.eval_inputs["heldout"].sizes.append(3)


def test_params_that_stand_in_two_places_are_built_as_two(toys: Any) -> None:
    norm = toys.Norm.params()
    stack = toys.Stack.params(dim=3, layer=[norm, norm])
    assert [b.path for b in builds(stack)] == ["", "layer[0]", "layer[1]"]


def test_params_made_in_setup_are_refused(toys: Any) -> None:
    class_ = type("Maker", (toys.Layer,), {"setup": lambda self: toys.Norm.params(dim=3).build()})
    with pytest.raises(
        ParamError, match="Maker builds Norm parameters that stand in none of its fields"
    ):
        class_.params().build()


def test_a_failed_check_names_the_path(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.model.layer.feed_forward.hidden_dim = 13
    with pytest.raises(
        ParamError, match=r"^model.layer.feed_forward: hidden_dim=13 brings bad luck"
    ):
        toy.build()
    assert toys.Toy.params().build() is not None  # nothing stays of the failure


def test_what_was_received_is_empty_outside_a_setup(toys: Any) -> None:
    assert received() == {}
