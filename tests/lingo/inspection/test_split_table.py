"""The weight table on a mesh."""

import json

from lingo.config.params import Params
from lingo.inspection import split_table, weight_table
from lingo.layers.layer import Layer
from lingo.layers.stacks.repeat import Repeat
from lingo.learner.state import Learner
from lingo.learner.task import Task
from lingo.mesh.rules import RECIPES
from lingo.mesh.topology import topology
from lingo.optim.adam import Adam
from lingo.runtimes.layout import Layout, layout


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


def laid_out(params: Params, mesh: dict[str, int]) -> tuple[Learner, Layout]:
    learner = Learner(params.build(), Adam.params(learning_rate=1.0).build())
    return learner, layout(learner, topology(mesh), RECIPES["2d_finalized"])


def test_a_row_says_how_a_weight_is_split_and_what_its_part_weighs():
    lines = split_table.render(*on_a_mesh()).splitlines()
    assert lines[0].split() == (
        ["path", "shape", "dtype", "axes", "split", "part", "bytes", "per", "device", "parameters"]
    )
    assert "[data, model]  [4, 3]" in lines[1]
    assert lines[1].split()[-2:] == ["48", "80"]
    assert len({len(line) for line in lines[:5]}) == 1


def test_a_row_of_many_experts_says_what_a_device_holds_of_them_all():
    table = split_table.render(*laid_out(Model.params(stack=Experts), {"expert": 4, "model": 2}))
    (row,) = [line.split() for line in table.splitlines() if "[0:300]" in line]
    assert row[0] == "stack/experts/[0:300]/w"
    assert row[-2:] == [f"{75 * 8 * 5 * 4:,}", f"{300 * 8 * 10:,}"]


def test_below_stand_the_bytes_that_each_device_holds():
    lines = split_table.render(*on_a_mesh()).splitlines()
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
    table = json.loads(json.dumps(split_table.as_json(learner, laid)))
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
    whole = split_table.render(learner, laid).splitlines()
    last = weight_table.brief(learner.task)[-1:]
    table, below = split_table.render(learner, laid, last).split("\n\n")
    assert table.splitlines()[1].split() == whole[3].split()
    assert below.splitlines() == whole[whole.index("") + 1 :]
    assert split_table.as_json(learner, laid, last)["weights"] == (
        split_table.as_json(learner, laid)["weights"][-1:]
    )
