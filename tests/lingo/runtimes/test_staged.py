"""What belongs to a stage of unlike layers is on its device, and all is computed as on one.

`on_stages.py` computes it, on three virtual devices.
"""

import json
import re

import numpy as np
import pytest

from lingo.config.params import ParamError
from tests.lingo.runtimes import on_stages
from tests.lingo.runtimes.child import printed
from tests.lingo.runtimes.on_stages import CLASSES, STAGES, WIDTHS, V

pytestmark = pytest.mark.xdist_group("staged")  # the program runs once
PLACES = {
    "head": ([WIDTHS[-1], CLASSES], 0),
    "chain/layers/0/table": ([V, WIDTHS[0]], 0),
    "chain/layers/1/w": ([WIDTHS[0], WIDTHS[1]], 0),
    "chain/layers/2/w": ([WIDTHS[1], WIDTHS[2]], 1),
    "chain/layers/3/w": ([WIDTHS[2], WIDTHS[3]], 2),
}
"""Shape of each weight, and the number of the device that it belongs to."""


@pytest.fixture(scope="module")
def found():
    return json.loads(printed("-m", on_stages.__name__).splitlines()[-1])


def test_all_that_is_kept_for_a_stage_is_on_its_device(found):
    kinds = found["variables"]
    assert dict(kinds["weights"]) == {path: device for path, (_, device) in PLACES.items()}
    states = [[f"chain/layers/{i + 1}/mean", i] for i in range(3)]
    of_weights = [[path, device] for path, (_, device) in PLACES.items() for _ in range(3)]
    assert sorted(kinds["slots"]) == sorted(of_weights + states), (
        "two moments and the average of each weight, the average of each state"
    )
    assert sorted(kinds["state"]) == states


def test_nothing_of_a_weight_is_on_another_device(found):
    """Its gradients and their sums over micro-batches, slots, average: all have its shape."""
    for shape, device in PLACES.values():
        where = [there for _, other, there in found["placed"]["stood"] if other == shape]
        assert len(where) > 20
        assert set(where) == {device}


def test_what_is_in_no_stage_is_on_the_first_device_whatever_that_computes(found):
    stood = found["placed/no weight in the first"]["stood"]
    on_others = {"chain/layers/1/w": 1, "chain/layers/2/w": 1, "chain/layers/3/w": 2}
    devices = {"head": 0} | on_others
    for path, device in devices.items():
        where = [there for _, shape, there in stood if shape == PLACES[path][0]]
        assert len(where) > 20
        assert set(where) == {device}, path
    of_all_gradients = re.compile(r"update(_\d+)?/Sqrt:0")
    assert {there for name, _, there in stood if of_all_gradients.fullmatch(name)} == {0}


def test_only_activations_and_sums_go_from_one_device_to_another(found):
    num, widths = on_stages.MICRO_BATCHES, WIDTHS[1:]
    rows = on_stages.B // num
    unknown = {name for name, shape in found["placed"]["sent"] if shape is None}
    assert all("/ctrl/" in name or "/switch_pred/" in name for name in unknown), unknown
    shapes = {tuple(shape) for _, shape in found["placed"]["sent"] if shape is not None}
    activations = {(rows, width) for width in WIDTHS} | {(num, rows, WIDTHS[-1])}
    statistics = {(width,) for width in widths}
    assert shapes <= {(), (0,), (1,), (rows,), (num, rows)} | activations | statistics


def test_a_stage_is_two_functions_that_its_device_computes_for_each_micro_batch(found):
    num = on_stages.MICRO_BATCHES
    expected = [[k] * num for k in range(STAGES) for _ in ("forward", "backward")]
    assert sorted(found["placed"]["functions"]) == expected


def test_steps_are_those_of_one_device_bit_for_bit(found):
    one, several = found["trained/1"], found[f"trained/{STAGES}"]
    assert np.isfinite(one["reports"][0]["loss/total"]).all()
    assert several["state"] == one["state"]
    assert several["reports"] == one["reports"]


def test_evaluation_and_decoding_are_those_of_one_device(found):
    one, several = found["trained/1"], found[f"trained/{STAGES}"]
    assert one["evaluated"]["trained"] != one["evaluated"]["ema"]
    assert several["evaluated"] == one["evaluated"]
    assert several["decoded"] == one["decoded"]


def test_of_several_steps_all_are_done_or_none(found):
    assert found["taken_back"]


def test_checkpoints_are_read_both_ways(found):
    assert found["handed_over"] == [found["trained/1"]["state"]] * 2


def test_parts_of_a_batch_are_refused():
    params = on_stages.experiment(2).set(accumulation_steps=2)
    with pytest.raises(ParamError, match=r"accumulation_steps=2 adds .* 2 times the num_micro"):
        params.build()


def test_a_batch_that_does_not_divide_is_refused_when_it_is_built():
    params = on_stages.experiment(2)
    params.train_input.batch_size = 10
    with pytest.raises(ParamError, match="chain: 10 rows cannot be cut into num_micro_batches=3"):
        params.build()


def test_stages_without_a_shape_need_times(monkeypatch):
    params = on_stages.experiment(2)
    monkeypatch.setattr(on_stages.Classes, "batch_flops", lambda self, specs: 0)
    with pytest.raises(ParamError, match="Classes does not count the operations of a batch"):
        params.build()
    params.task.chain.times = [1.0, 1.0, 1.0, 1.0]
    params.build()
