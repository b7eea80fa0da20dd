"""The weight table: the same for stacked and separate weights."""

import json

import pytest

from lingo.config.params import Params
from lingo.inspection import weight_table
from lingo.layers.layer import Layer
from lingo.layers.linear import Linear
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.learner.state import Learner
from lingo.learner.task import Task
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology
from lingo.optim.adam import Adam
from lingo.runtimes.layout import Layout, layout


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


# ---- on a mesh


class Wide(Layer):
    """One weight, in parts along both axes."""

    dim: int = 8  # width

    def setup(self) -> None:
        self.w = self.weight("w", [self.p.dim, 10], axes=("embed", "mlp"))


class Model(Task):
    """A stack that nobody calls."""

    stack: Layer  # the layers

    def setup(self) -> None:
        self.stack = self.p.stack.build()


class Experts(Layer):
    """Alike layers that stand side by side."""

    expert: Layer = Wide  # one of them

    def setup(self) -> None:
        self.copies("experts", self.p.expert.build(), 300, axis="expert")


def on_a_mesh() -> tuple[Learner, Layout]:
    stack = Repeat.params(layer=Wide.params(), num_layers=3)
    return laid_out(Model.params(stack=stack), {"data": 2, "model": 4})


def split_text(learner: Learner, laid: Layout) -> str:
    return weight_table.split_text(learner, laid, weight_table.brief(learner.task))


def split_json(learner: Learner, laid: Layout) -> dict:
    return weight_table.split_json(learner, laid, weight_table.rows(learner.task))


def laid_out(params: Params, mesh: dict[str, int]) -> tuple[Learner, Layout]:
    learner = Learner(params.build(), Adam.params(learning_rate=1.0).build())
    return learner, layout(learner, topology(mesh), RECIPES["2d_finalized"])


def test_a_row_says_how_a_weight_is_split_and_what_its_part_weighs():
    lines = split_text(*on_a_mesh()).splitlines()
    assert lines[0].split() == (
        ["path", "shape", "dtype", "axes", "split", "part", "bytes", "per", "device", "parameters"]
    )
    assert "[data, model]  [4, 3]" in lines[1]
    assert lines[1].split()[-2:] == ["48", "80"]
    assert len({len(line) for line in lines[:5]}) == 1


def test_a_row_of_many_experts_says_what_a_device_holds_of_them_all():
    table = split_text(*laid_out(Model.params(stack=Experts), {"expert": 4, "model": 2}))
    (row,) = [line.split() for line in table.splitlines() if "[0:300]" in line]
    assert row[0] == "stack/experts/[0:300]/w"
    assert row[-2:] == [f"{75 * 8 * 5 * 4:,}", f"{300 * 8 * 10:,}"]


def test_below_stand_the_bytes_that_each_device_holds():
    lines = split_text(*on_a_mesh()).splitlines()
    below = lines[lines.index("") + 1 :]
    assert below[0].startswith("on 8 devices (data=2, model=4)")
    assert [line.split() for line in below[1:]] == [
        ["weights", "144", "192"],  # 3 weights of 4 * 3; 12 of 10 columns, in 8 rows
        ["slots", "288", "384"],
        ["gradients", "144", "192"],
        ["statistics", "0", "0"],
        ["total", "576", "768"],
    ]


def test_json_adds_to_the_table_without_a_mesh():
    learner, laid = on_a_mesh()
    table = json.loads(json.dumps(split_json(learner, laid)))
    plain = json.loads(json.dumps(weight_table.as_json(weight_table.rows(learner.task))))
    added = {
        "split": [["data"], ["model"]],
        "part": [4, 3],
        "bytes_per_device": 48,
        "tiles": "{devices=[2,4]<=[8]}",
    }
    assert table["weights"] == [row | added for row in plain["weights"]]
    assert table["total_parameters"] == plain["total_parameters"]
    assert (table["mesh"]["data"], table["mesh"]["model"], table["num_devices"]) == (2, 4, 8)
    assert table["bytes_per_device"] == (
        {"weights": 144, "slots": 288, "gradients": 144, "statistics": 0}
    )
    assert table["padding_bytes"]["weights"] == 192


def test_some_rows_have_the_shards_of_the_whole_table():
    learner, laid = on_a_mesh()
    whole = split_text(learner, laid).splitlines()
    last = weight_table.brief(learner.task)[-1:]
    table, below = weight_table.split_text(learner, laid, last).split("\n\n")
    assert table.splitlines()[1].split() == whole[3].split()
    assert below.splitlines() == whole[whole.index("") + 1 :]
    assert (
        weight_table.split_json(learner, laid, last)["weights"]
        == (split_json(learner, laid)["weights"][-1:])
    )
