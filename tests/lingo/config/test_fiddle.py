"""Tools of Fiddle work on parameters: docs/fiddle.md."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import pytest
from fiddle import daglish, diffing, graphviz, printing, selectors

from lingo.config.node.tree import same
from lingo.config.params import ParamError


class Width(fdl.Tag):
    """Widths."""


def test_a_selection_sets_a_field_of_every_instance_and_checks_it(toys: Any) -> None:
    toy = toys.Toy.params()
    selected = selectors.select(toy, toys.Norm)
    selected.set(epsilon=0.5)
    assert toy.model.layer.feed_forward.norm.epsilon == 0.5
    assert set(selected.get("epsilon")) == {0.5}
    with pytest.raises(ParamError, match=r"Norm.epsilon takes float, got 'x'"):
        selected.set(epsilon="x")


def test_a_selection_has_subclasses_and_can_be_replaced(toys: Any) -> None:
    ffn = toys.Gated.params()
    assert list(selectors.select(ffn, toys.Norm)) == [ffn.norm]
    selectors.select(ffn, toys.LayerNorm).replace(toys.Norm.params(epsilon=0.5))
    assert same(ffn, toys.Gated.params(norm=toys.Norm.params(epsilon=0.5)))


def test_tags_of_a_copy_are_its_own(toys: Any) -> None:
    first, second = toys.Norm.params(), toys.Norm.params()
    fdl.add_tag(first, "dim", Width)
    copy = first.copy()
    fdl.clear_tags(first, "dim")
    assert fdl.get_tags(copy, "dim") == {Width}
    assert fdl.get_tags(second, "dim") == fdl.get_tags(toys.Norm.params(), "dim") == frozenset()


def test_a_tag_sets_fields_of_several_classes_and_checks_them(toys: Any) -> None:
    ffn = toys.FeedForward.params()
    fdl.add_tag(ffn, "hidden_dim", Width)
    fdl.add_tag(ffn.norm, "dim", Width)
    fdl.set_tagged(ffn, tag=Width, value=3)
    assert (ffn.hidden_dim, ffn.norm.dim) == (3, 3)
    assert list(selectors.select(ffn, tag=Width)) == [3, 3]
    with pytest.raises(ParamError, match=r"hidden_dim takes int or None, got 'x'"):
        fdl.set_tagged(ffn, tag=Width, value="x")


def test_fields_are_printed_with_who_set_them(toys: Any) -> None:
    ffn = toys.FeedForward.params(hidden_dim=7)
    lines = printing.as_str_flattened(ffn, include_types=False).splitlines()
    assert "hidden_dim = 7" in lines
    assert "norm.epsilon = <[unset; default: 1e-06]>" in lines
    history = printing.history_per_leaf_parameter(ffn)
    (line,) = [line for line in history.splitlines() if line.startswith("hidden_dim")]
    assert f"{__file__}:" in line
    assert line.endswith("test_fields_are_printed_with_who_set_them")


def test_a_difference_is_found_and_drawn(toys: Any) -> None:
    old, new = toys.FeedForward.params(), toys.FeedForward.params()
    new.norm.epsilon = 0.5
    (change,) = diffing.build_diff(old, new).changes
    assert (daglish.path_str(change.target), change.new_value) == (".norm.epsilon", 0.5)
    assert "0.5" in graphviz.render_diff(old=old, new=new).source


def test_fiddle_builds_a_tree_as_its_root_does(toys: Any) -> None:
    ffn = toys.FeedForward.params(dim=3)
    built = fdl.build(ffn)
    assert type(built.norm) is toys.Norm
    assert built.norm.p.dim == 3  # inherited, which a build from the leaves could not
    assert not ffn.norm.is_given("dim")


def test_params_in_a_config_of_fiddle_become_objects(toys: Any) -> None:
    norms = [toys.Norm.params(dim=1), toys.LayerNorm.params(dim=2)]
    built = fdl.build(fdl.Config(dict, norms=norms, other=3))
    assert [type(norm) for norm in built["norms"]] == [toys.Norm, toys.LayerNorm]
    assert built["other"] == 3
