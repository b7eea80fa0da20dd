"""The weight table: the same for stacked and separate weights."""

import pytest

from lingo.inspection import weight_table
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack


class Scale(Layer):
    """A layer with a scalar weight."""

    dim: int = 1  # unused: what a stack offers

    def setup(self) -> None:
        self.scale = self.weight("scale", [], axes=[])


class Pair(Layer):
    """A layer whose second weight is declared before the first in the alphabet."""

    dim: int = 2  # width

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim, 3], axes=("embed", None))
        self.b = self.weight("b", [3], axes=(None,))


def pairs(stack: type[Layer], num: int) -> Layer:
    return stack.params(layer=Pair.params(), num_layers=num).build()


def test_rows_stand_layer_by_layer_in_the_order_of_declaration():
    table = weight_table.rows(pairs(Stack, 11))
    assert [row.path for row in table[:3]] == ["layers/0/w", "layers/0/b", "layers/1/w"]
    assert table[-1].path == "layers/10/b"
    assert table[0] == weight_table.Row("layers/0/w", (2, 3), "float32", ("embed", None))


def test_repeat_has_the_table_of_stack():
    stacked, separate = pairs(Repeat, 11), pairs(Stack, 11)
    assert weight_table.rows(stacked) == weight_table.rows(separate)
    assert weight_table.compact(stacked) == weight_table.compact(separate)


def test_alike_layers_share_a_row_of_the_compact_table():
    table = weight_table.compact(pairs(Stack, 11))
    sizes = [(row.path, row.parameters) for row in table]
    assert sizes == [("layers/[0:11]/w", 66), ("layers/[0:11]/b", 33)]


def test_a_table_for_people_has_one_row_for_many_alike_layers():
    few, many = pairs(Stack, weight_table.MANY), pairs(Stack, weight_table.MANY + 1)
    assert weight_table.brief(few) == weight_table.rows(few)
    assert weight_table.brief(many) == weight_table.compact(many)
    assert weight_table.text(weight_table.compact(many)) == weight_table.render(many)


def test_weights_that_are_stacked_twice_are_each_named_once():
    inner = Repeat.params(layer=Pair.params(), num_layers=2)
    twice = Repeat.params(layer=inner, num_layers=3).build()
    assert [row.path for row in weight_table.rows(twice)] == [
        f"layers/{i}/layers/{j}/{name}" for i in range(3) for j in range(2) for name in "wb"
    ]


def test_layers_that_take_turns_have_rows_with_a_stride():
    stack = Stack.params(layer=[Pair.params(), Scale.params()], num_layers=6).build()
    assert [row.path for row in weight_table.compact(stack)] == [
        "layers/[0:5:2]/w",
        "layers/[0:5:2]/b",
        "layers/[1:6:2]/scale",
    ]


@pytest.mark.parametrize(
    ("indices", "runs"),
    [([3], [[3]]), ([0, 2, 4, 5], [[0, 2, 4], [5]]), ([0, 1, 4, 5], [[0, 1], [4, 5]])],
)
def test_irregular_indices_become_several_rows(indices, runs):
    assert list(weight_table._progressions(indices)) == runs


def test_the_text_is_aligned_and_ends_with_the_total():
    lines = weight_table.render(pairs(Stack, 1)).splitlines()
    assert lines[0].split() == ["path", "shape", "dtype", "axes", "parameters"]
    assert lines[1].split("  ")[-1].strip() == "6"
    assert "embed, -" in lines[1]
    assert lines[-1].split() == ["total", "9"]
    assert len({len(line) for line in lines}) == 1


def test_a_row_for_several_layers_is_marked_where_all_or_some_are_frozen():
    table = weight_table.compact(pairs(Stack, 3))
    frozen = {"layers/0/w", *(f"layers/{i}/b" for i in range(3))}
    header, *lines = weight_table.text(table, frozen).splitlines()
    assert [line.partition("partly ")[1] + line.split()[-1] for line in lines] == [
        "partly frozen", "frozen", "27"
    ]  # fmt: skip
    assert header == header.rstrip()
    assert "frozen" not in weight_table.text(table)


def test_sums_are_of_modules_and_an_index_belongs_to_the_part_before_it():
    lines = weight_table.sums_text(weight_table.rows(pairs(Stack, 2)), 1).splitlines()
    assert [line.split() for line in lines] == [
        ["module", "rows", "parameters", "share"],
        ["layers/0", "2", "9", "50.0%"],
        ["layers/1", "2", "9", "50.0%"],
        ["total", "4", "18", "100.0%"],
    ]


def test_json_has_a_row_for_every_weight():
    layer = Linear.params(dim=2, output_dim=3).build()
    table = weight_table.as_json(weight_table.rows(layer))
    assert table["total_parameters"] == sum(row["parameters"] for row in table["weights"])
    assert table["weights"][0].keys() == {
        *("path", "shape", "dtype", "axes", "parameters", "frozen")
    }


def test_a_computation_in_bfloat16_does_not_change_the_table():
    narrow = Pair.params(dtype="bfloat16").build()
    assert weight_table.rows(narrow) == weight_table.rows(Pair.params().build())
