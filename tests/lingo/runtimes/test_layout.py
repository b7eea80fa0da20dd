"""Layouts: which part of every tensor of a training state a device holds."""

import math
from typing import Any

import numpy as np
import pytest

from lingo.config.params import ParamError, Params
from lingo.layers.layer import Layer
from lingo.layers.stacks.repeat import Repeat
from lingo.learner.state import Learner
from lingo.learner.task import Task
from lingo.mesh.rules import RECIPES, Recipe
from lingo.mesh.topology import topology
from lingo.optim.adafactor import Adafactor
from lingo.optim.adam import Adam
from lingo.optim.layerwise import Lamb, Lars
from lingo.optim.rmsprop import RmsProp
from lingo.optim.sgd import Momentum
from lingo.runtimes.layout import DeviceBytes, Layout, bytes_per_device, layout, pad_part
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.replicated.replicated import Replicated

MESH = topology({"data": 2, "model": 4})


class Block(Layer):
    """Weights of several ranks, and a statistic."""

    hidden: int = 12  # width inside
    dim: int = 6  # width outside

    def setup(self) -> None:
        p = self.p
        self.w = self.weight("w", [p.dim, p.hidden], axes=("embed", "mlp"))
        self.v = self.weight("v", [p.hidden, p.dim], axes=("mlp", "embed"))
        self.scale = self.weight("scale", [p.dim], axes=("embed",))
        self.gain = self.weight("gain", [], axes=())
        self.mean = self.state("mean", [p.hidden], decay=0.9)


class One(Layer):
    """A single weight."""

    shape: list[int]
    axes: list[str | None]

    def setup(self) -> None:
        self.w = self.weight("w", self.p.shape, axes=tuple(self.p.axes))


ODD = One.params(shape=[7, 5], axes=["embed", None])  # its own axes do not divide by two
OWN = One.params(shape=[4], axes=["colour"])  # an axis that nobody else has


class Model(Task):
    """A model that nobody calls."""

    model: Layer  # its weights

    def setup(self) -> None:
        self.model = self.p.model.build()


def learner(model: Params, optimizer: Params | None = None) -> Learner:
    optimizer = optimizer or Adam.params(learning_rate=1.0, ema_decay=0.9)
    return Learner(Model.params(model=model).build(), optimizer.build())


def laid(model: Params, *, recipe: Recipe = "1d", mesh: Any = MESH, **options: Any) -> Layout:
    return layout(learner(model), mesh, RECIPES[recipe], **options)


def texts(splits: dict[str, Any]) -> dict[str, str]:
    return {where.removeprefix("model/"): str(split) for where, split in splits.items()}


def test_weights_rest_as_the_rules_say():
    found = laid(Block.params())
    assert texts(found.rest) == {"w": "[-, model]", "v": "[model, -]", "scale": "[-]", "gain": "[]"}
    assert found.update == {**found.rest, **found.state}
    assert texts(found.state) == {"mean": "[-]"}


def test_slots_and_averages_are_split_as_the_update():
    found = laid(Block.params(), shard_update=True)
    for where in found.rest:
        split = found.update[where]
        assert found.slots[where] == {"m": split, "v": split, "ema": split}
    assert found.slots["model/mean"] == {"ema": found.update["model/mean"]}


def test_a_slot_that_runs_along_some_axes_is_split_along_these():
    optimizer = Adafactor.params(learning_rate=1.0)
    found = layout(learner(Block.params(), optimizer), MESH, RECIPES["2d_finalized"])
    assert texts(found.slots["model/w"]) == {"v_row": "[data]", "v_column": "[model]"}


def test_a_sharded_update_cuts_the_first_axis_that_divides_along_the_batch_too():
    found = laid(Block.params(), shard_update=True)
    assert texts(found.rest)["w"] == "[-, model]"
    assert texts(found.update) == {
        "w": "[data, model]",
        "v": "[model, data]",  # parts of 3 do not divide by 2, 6 does
        "scale": "[data]",
        "gain": "[]",
        "mean": "[data]",  # its average is a slot
    }


def test_an_optimizer_that_does_not_take_rows_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Any:
        return layout(one, MESH, RECIPES["1d"], shard_update=True).rows["model/w"]

    one = learner(ODD, Momentum.params(learning_rate=1.0))
    assert rows() is not None
    monkeypatch.delattr(Momentum, "takes_rows")  # a subclass of Sgd does not inherit it
    assert rows() is None
    replicas = Replicated.params(devices=["cpu:0", "cpu:1"], shard_update=True).build()
    with pytest.raises(ParamError, match="Momentum does not say that it takes them: set"):
        replicas.check_learner(one)


def test_a_weight_that_rests_in_parts_along_the_batch_is_updated_in_these() -> None:
    mesh = topology({"data": 2})
    both = laid(ODD, mesh=mesh, shard_update=True, shard_weights=True)
    assert both.update == both.rest
    assert both.rows["model/w"] is None


def test_sharded_weights_rest_in_the_parts_of_their_update():
    found = laid(Block.params(), shard_weights=True)
    update = laid(Block.params(), shard_update=True).update
    assert found.rest == {where: update[where] for where in found.rest}
    # a mesh axis that the rules use already is not added
    by_rules = laid(Block.params(), recipe="2d_finalized", shard_update=True, shard_weights=True)
    assert texts(by_rules.rest) == texts(found.rest)


@pytest.mark.parametrize(
    ("layer", "mesh", "uneven", "expected"),
    [
        pytest.param(
            Block.params(), {"data": 2, "expert": 3}, True, "[data+expert, -]", id="both axes"
        ),
        pytest.param(ODD, {"data": 2}, True, "[-, -]/data", id="no axis divides"),
        pytest.param(ODD, {"data": 2}, False, "[-, -]", id="padding is not allowed"),
        pytest.param(ODD, {"data": 64}, True, "[-, -]/data", id="fewer elements than devices"),
    ],
)
def test_an_update_is_cut_along_all_axes_of_the_batch_or_none(layer, mesh, uneven, expected):
    found = laid(layer, mesh=topology(mesh), shard_update=True, uneven=uneven)
    assert texts(found.update)["w"] == expected


def test_stacked_layers_are_cut_along_their_own_axes_first():
    found = laid(Repeat.params(layer=Block.params(), num_layers=4), shard_weights=True)
    assert str(found.rest["model/layers/[0:4]/w"]) == "[-, data, model]"
    assert str(found.rest["model/layers/[0:4]/gain"]) == "[data]"
    odd = laid(Repeat.params(layer=ODD, num_layers=4), shard_weights=True)
    assert str(odd.rest["model/layers/[0:4]/w"]) == "[data, -, -]"


def test_a_mesh_of_one_device_splits_nothing():
    found = laid(Block.params(), mesh=topology({}), shard_update=True, shard_weights=True)
    assert not any(split.used_axes() for split in (*found.rest.values(), *found.update.values()))


def test_each_device_holds_its_share_of_everything():
    model = learner(Block.params())
    found = bytes_per_device(model, layout(model, MESH, RECIPES["1d"], shard_update=True))
    assert found == {
        "weights": DeviceBytes(4 * (18 + 18 + 6 + 1), 0),
        "slots": DeviceBytes(3 * 4 * (9 + 9 + 3 + 1) + 4 * 6, 0),
        "gradients": DeviceBytes(4 * (9 + 9 + 3 + 1), 0),
        "statistics": DeviceBytes(4 * 12, 0),
    }


def test_replicas_keep_chunks_of_slots_but_whole_gradients():
    model = learner(Block.params())
    replicas = Replicated.params(devices=[f"CPU:{i}" for i in range(4)], shard_update=True)
    chunks = 18 + 18 + 2 + 1  # of w, v, scale and gain
    expected = {
        "weights": DeviceBytes(4 * (72 + 72 + 6 + 1), 0),
        "slots": DeviceBytes(4 * (3 * chunks + 3), 4 * 3 * (2 + 3)),
        "gradients": DeviceBytes(4 * (72 + 72 + 6 + 1), 0),
        "statistics": DeviceBytes(4 * 12, 0),
    }
    assert bytes_per_device(model, replicas.build().layout(model)) == expected
    replicas.gather_dtype = "bfloat16"
    expected["weights"] = DeviceBytes(4 * chunks, 4 * (2 + 3))
    assert bytes_per_device(model, replicas.build().layout(model)) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": 2}, "is for weights that shard_update=True gathers: set both"),
        ({"data": 2, "shard_update": True, "shard_weights": True}, "take one of the two"),
        ({"model": 2, "shard_update": True}, r"no devices share a batch \(model=2\)"),
    ],
)
def test_a_type_of_what_nobody_gathers_is_refused(fields, message):
    with pytest.raises(ParamError, match=message):
        Mesh.params(gather_dtype="bfloat16", **fields).build()


def test_a_row_of_1001_elements_is_126_for_each_of_8_devices_and_7_zeros():
    one = learner(One.params(shape=[1001], axes=["embed"]), Momentum.params(learning_rate=1.0))
    split = layout(one, topology({"data": 8}), RECIPES["1d"], shard_update=True)
    assert bytes_per_device(one, split)["slots"] == DeviceBytes(4 * 126, 4 * 7)


@pytest.mark.parametrize("cls", [Adam, Adafactor, Lamb, Lars, RmsProp])
@pytest.mark.parametrize("shape", [[], [5], [7, 5], [3, 3, 7, 10], [16, 6]])
def test_each_device_keeps_one_nth_of_every_slot(cls, shape):
    model = One.params(shape=shape, axes=[None] * len(shape))
    one, mesh = learner(model, cls.params(learning_rate=1.0)), topology({"data": 8})
    found = layout(one, mesh, RECIPES["1d"], shard_update=True)
    for where, slots in one.slots().items():
        for name, slot in slots.items():
            size = found.slots[where][name].part_size(slot.shape, mesh)
            assert size == -(-math.prod(slot.shape) // 8)


def test_padding_is_counted_over_all_parts():
    model = learner(Block.params(hidden=10))
    found = bytes_per_device(model, layout(model, MESH, RECIPES["1d"]))
    assert found["weights"] == DeviceBytes(4 * (18 + 18 + 6 + 1), 4 * (2 * 6 * 2))


def test_an_error_names_the_weight():
    with pytest.raises(ParamError, match=r"^runtime: model/w: 'mlp' of 10 does not divide into 4"):
        laid(Block.params(hidden=10), uneven=False)
    with pytest.raises(
        ParamError, match=r"^runtime: model/w: no rule for the logical axis 'colour'"
    ):
        laid(OWN)


def test_one_device_has_no_layout():
    model = learner(OWN)
    local = Local.params().build()
    assert local.layout(model) is None
    local.check_learner(model)


def test_a_part_is_as_large_as_the_others_wherever_the_tensor_ends():
    value = np.arange(1, 6, dtype=np.int32)
    parts = [pad_part(value, (slice(start, start + 2),), (2,)) for start in (0, 2, 4, 6)]
    assert [one.tolist() for one in parts] == [[1, 2], [3, 4], [5, 0], [0, 0]]
    assert {one.dtype for one in parts} == {value.dtype}
    assert not np.shares_memory(parts[0], value)
