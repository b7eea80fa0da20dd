"""Rules: from logical axes to mesh axes, and what they refuse."""

import pytest

from lingo.config.params import ParamError
from lingo.mesh.rules import RECIPES, parts, split
from lingo.mesh.split import Split
from lingo.mesh.topology import AXES, topology

X, Y, WHOLE = ("data",), ("model",), ()
TWO_BY_FOUR = topology({"data": 2, "model": 4})
WEIGHTS = {
    "MH": ("embed", "mlp"),
    "HM": ("mlp", "embed"),
    "MND": ("embed", "heads", "head_dim"),
    "NDM": ("heads", "head_dim", "embed"),
}
ACTIVATIONS = {
    "BSM": ("batch", "length", "embed"),
    "BSH": ("batch", "length", "mlp"),
    "BSND": ("batch", "length", "heads", "head_dim"),
}
# Xu et al. 2021, sec. 5.1; the last is also that of Lingvo's 128B model
TABLE = {
    "2d_attempt_1": {"BSM": (WHOLE, WHOLE, X), "BSH": (WHOLE, WHOLE, Y)},
    "2d_attempt_2": {"BSM": (X, WHOLE, WHOLE), "BSH": (X, WHOLE, Y)},
    "2d_finalized": {"BSM": (X, WHOLE, Y), "BSH": (X, WHOLE, Y)},
}


def cut(recipe, tensor):
    """Returns how a recipe splits a tensor of the paper, all of whose axes are of 8."""
    rules, logical = RECIPES[recipe], (WEIGHTS | ACTIVATIONS)[tensor]
    table = rules.weights if tensor in WEIGHTS else rules.activations
    return split([8] * len(logical), logical, table, TWO_BY_FOUR)


@pytest.mark.parametrize("recipe", TABLE)
def test_two_dimensional_recipes_are_those_of_the_paper(recipe):
    assert cut(recipe, "MH").axes == (X, Y)
    assert cut(recipe, "HM").axes == (Y, X)
    assert cut(recipe, "MND").axes == (X, Y, WHOLE)
    assert cut(recipe, "NDM").axes == (Y, WHOLE, X)
    for tensor, axes in TABLE[recipe].items():
        assert cut(recipe, tensor).axes == axes
    batch, length, heads = TABLE[recipe]["BSH"]
    assert cut(recipe, "BSND").axes == (batch, length, heads, WHOLE)


def test_one_dimension_splits_batches_by_data_and_layers_by_model():
    assert cut("1d", "MH").axes == (WHOLE, Y)
    assert cut("1d", "BSM").axes == (X, WHOLE, WHOLE)
    assert cut("1d", "BSND").axes == (X, WHOLE, Y, WHOLE)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_axes_of_the_mesh_and_what_weights_name_in_both_tables(recipe):
    rules = RECIPES[recipe]
    images = {"depth", "height", "width", "channels"}
    assert set(rules.activations) == {*rules.weights, "batch", "group", "length", *images}
    for axes in (*rules.weights.values(), *rules.activations.values()):
        assert set(axes) <= set(AXES)


def test_an_axis_may_be_cut_along_several_mesh_axes():
    mesh = topology({"data": 2, "expert": 3})
    found = split([6, 5], ("batch", None), RECIPES["1d"].activations, mesh)
    assert str(found) == "[data+expert, -]"


def test_mesh_axes_of_one_device_split_nothing():
    found = split([8, 8], ("heads", "mlp"), RECIPES["1d"].weights, topology({"data": 8}))
    assert found == Split(((), ()))


@pytest.mark.parametrize(
    ("logical", "rules", "message"),
    [
        ("embd mlp", {}, r"no rule for .*'embd' of \[8, 8\].*Did you mean 'embed'"),
        ("heads mlp", {}, r"'model' of 4 devices .* twice.*'heads' and 'mlp'"),
        ("embed", {"embed": ("model", "model")}, r"twice, by the rules of 'embed' and 'embed'"),
        ("embed", {"embed": ("modle",)}, r"rule of 'embed' names 'modle'.*Did you mean 'model'"),
    ],
)
def test_axes_without_one_rule_that_fits_are_refused(logical, rules, message):
    names = logical.split()
    with pytest.raises(ParamError, match=message):
        split([8] * len(names), names, RECIPES["1d"].weights | rules, TWO_BY_FOUR)


def test_a_size_that_does_not_divide_is_refused_unless_it_may():
    with pytest.raises(
        ParamError, match=r"'mlp' of 10 .* 4 equal parts, along the mesh axis model"
    ):
        split([8, 10], ("embed", "mlp"), RECIPES["1d"].weights, TWO_BY_FOUR)
    found = split([8, 10], ("embed", "mlp"), RECIPES["1d"].weights, TWO_BY_FOUR, uneven=True)
    assert found.part_shape([8, 10], TWO_BY_FOUR) == (8, 3)


def test_what_cuts_mapped_copies_cuts_nothing_behind_them():
    mesh, table = topology({"data": 2, "expert": 3}), RECIPES["1d"].activations
    logical = ("expert", "batch", "length", "embed")
    assert str(split([6, 4, 5, 8], logical, table, mesh, num_mapped=1)) == "[expert, data, -, -]"
    with pytest.raises(ParamError, match=r"'expert' of 3 devices would cut .* twice"):
        split([6, 4, 5, 8], logical, table, mesh)
    with pytest.raises(ParamError, match=r"'expert' of 3 devices would cut .* twice"):
        split([2, 6, 6], ("stage", "batch", "expert"), table, mesh, num_mapped=1)


def test_parts_are_those_that_an_axis_is_cut_into():
    mesh, table = topology({"data": 2, "expert": 3}), RECIPES["1d"].activations
    names = ("batch", "expert", "group", "mlp")
    assert [parts(name, table, mesh) for name in names] == [6, 3, 2, 1]
    with pytest.raises(ParamError, match=r"no rule for the logical axis 'expret'.*'expert'"):
        parts("expret", table, mesh)
