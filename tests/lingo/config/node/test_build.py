"""Claims about shallow building and inherited values."""

from __future__ import annotations

from typing import Any

import pytest

from lingo.config.node.build import MAX_PARTS, builds
from lingo.config.params import ParamError, inherited_values


def test_inherited_values_fill_what_nobody_set(toys: Any) -> None:
    node = toys.FeedForward.params(dropout_rate=0.5)
    built = node.build(dim=3, dropout_rate=0.1, unknown=7)
    assert (built.p.dim, built.p.dropout_rate, built.norm.p.dim) == (3, 0.5, 3)
    assert not node.is_given("dim")


def test_dtype_is_inherited_by_itself(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.model.dtype = "bfloat16"
    toy.model.layer.feed_forward.norm.dtype = "float16"
    found = {b.path: b.params.dtype for b in builds(toy) if b.path.startswith("model")}
    assert found["model.layer.attention"] == "bfloat16"
    assert found["model.layer.feed_forward.norm"] == "float16"


def test_a_wrapper_passes_down_all_that_it_inherits(toys: Any) -> None:
    stack = toys.Stack.params(
        dim=3, layer=toys.Remat.params(layer=toys.Remat.params(layer=toys.Norm))
    )
    (norm, *_) = [b for b in builds(stack) if b.params.cls is toys.Norm]
    assert (norm.path, norm.params.dim) == ("layer.layer.layer", 3)
    assert norm.inherited_from == {"dim": "Stack"}


def test_a_field_that_nobody_set_names_who_could_pass_it_down(toys: Any) -> None:
    message = "^model: Norm needs dim: it is not set, and Toy, which builds it"
    with pytest.raises(ParamError, match=message):
        toys.Toy.params(model=toys.Norm).build()
    message = "^Norm: Norm needs dim: it is not set, and no parent passes it down"
    with pytest.raises(ParamError, match=message):
        toys.Norm.params().build()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_misspelt_name_that_is_passed_down_is_named_with_the_field(toys: Any, wrapped: bool):
    inner = toys.Remat.params(layer=toys.Norm) if wrapped else toys.Norm
    odd = type("Odd", (toys.Stack,), {"setup": lambda self: self.p.layer.build(dims=3, x=1)})
    message = r"Norm needs dim: .* pass it down\. Odd passes down 'dims'\. Did you mean 'dim'"
    with pytest.raises(ParamError, match=message):
        odd.params(dim=3, layer=inner).build()


def test_an_inherited_value_of_the_wrong_type_names_both(toys: Any) -> None:
    message = "the caller passes down a wrong value: Norm.dim takes int, got 'x'"
    with pytest.raises(ParamError, match=message):
        toys.Norm.params().build(dim="x")
    odd = type("Odd", (toys.Tied,), {"setup": lambda self: self.p.child.build(norm=toys.Adam)})
    message = "^child: Odd passes down a wrong value: FeedForward.norm takes a Layer such as Norm"
    with pytest.raises(ParamError, match=message):
        odd.params().build()


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_parent_has_cannot_be_set_otherwise_where_that_is_asked_for(toys, wrapped):
    norm = toys.Norm.params(dim=3)
    inner = toys.Remat.params(layer=norm) if wrapped else norm
    assert toys.Stack.params(dim=4, layer=inner).build(), "a kind may allow it"
    strict = {"_fits_parent": True}
    child = type("Child", (toys.Norm,), strict).params(dim=3)
    inner = type("Inner", (toys.Remat,), strict).params(layer=child) if wrapped else child
    parent = type("Parent", (toys.Stack,), strict)
    path = "layer.layer" if wrapped else "layer"
    message = rf"^{path}\.dim=3, but Parent, .* has dim=4: leave it out"
    with pytest.raises(ParamError, match=message):
        parent.params(dim=4, layer=inner).build()
    assert parent.params(dim=3, layer=inner).build()


@pytest.mark.parametrize("num_layers", [MAX_PARTS, 2**62])
def test_a_tree_of_more_parts_than_can_be_built_in_time_is_refused(toys, num_layers):
    endless = type(
        "Endless",
        (toys.Stack,),
        {"setup": lambda self: [self.p.layer.build(dim=1) for _ in range(self.p.num_layers)]},
    )
    with pytest.raises(ParamError, match=r"^layer: the experiment has more than 50,000 parts"):
        endless.params(dim=1, layer=toys.Norm, num_layers=num_layers).build()


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


def test_params_in_two_places_are_built_as_two(toys: Any) -> None:
    norm = toys.Norm.params()
    stack = toys.Stack.params(dim=3, layer=[norm, norm])
    assert [b.path for b in builds(stack)] == ["", "layer[0]", "layer[1]"]


def test_params_made_in_setup_are_refused(toys: Any) -> None:
    class_ = type("Maker", (toys.Layer,), {"setup": lambda self: toys.Norm.params(dim=3).build()})
    message = "Maker builds Norm parameters that are in none of its fields"
    with pytest.raises(ParamError, match=message):
        class_.params().build()


def test_a_failed_check_names_the_path(toys: Any) -> None:
    toy = toys.Toy.params()
    toy.model.layer.feed_forward.hidden_dim = 13
    message = "^model.layer.feed_forward: hidden_dim=13 brings bad luck"
    with pytest.raises(ParamError, match=message):
        toy.build()
    assert toys.Toy.params().build() is not None  # nothing stays of the failure


def test_what_was_received_is_empty_outside_a_setup(toys: Any) -> None:
    assert inherited_values() == {}
