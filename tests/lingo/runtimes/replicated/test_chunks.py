"""Replicas that update chunks compute what one device does; `on_chunks.py` computes it."""

import json
import math
import pathlib

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.learner.state import initial_state
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed
from tests.lingo.runtimes.mesh.test_update_sharding import (
    CASES,
    descended,
    learner,
    tolerance,
)

over_cases = pytest.mark.parametrize("name", CASES)
SLOTLESS = ("Frozen", "Sgd", "clipped by value and weight")
PROGRAM = pathlib.Path(__file__).with_name("on_chunks.py")
pytestmark = pytest.mark.xdist_group("chunks")  # the program runs once


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """Returns what the program computes with the optimizers of this session's tests."""
    tests = [one for one in request.session.items if getattr(one, "module", None) is request.module]
    names = sorted({one.callspec.params["name"] for one in tests if hasattr(one, "callspec")})
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment |= QUICK_TO_COMPILE
    folder = tmp_path_factory.mktemp("chunks")
    out = printed(str(PROGRAM), *names, cwd=folder, env=environment)
    return json.loads(out.splitlines()[-1])


@over_cases
def test_ten_steps_in_chunks_are_those_of_one_device(found, name):
    for chunks, one in zip(*reversed(found[name]["states"]), strict=True):
        np.testing.assert_allclose(chunks, one, rtol=1e-6, atol=tolerance(name))


@over_cases
def test_a_replica_keeps_a_quarter_of_every_slot(found, name):
    slots = list(zip(*map(found[name].get, ("chunks", "sizes", "layers")), strict=True))
    assert bool(slots) == (name not in SLOTLESS)
    for chunks, size, layers in slots:
        assert chunks == [layers * -(-size // layers // 4)] * 4


@over_cases
def test_a_state_of_one_device_is_loaded_bit_by_bit(found, name):
    assert found[name]["loaded"]


@over_cases
def test_steps_that_are_not_finite_change_nothing(found, name):
    assert found[name]["skips"]


@over_cases
def test_the_bytes_of_this_machine_are_those_of_all_variables(found, name):
    measured, expected = found[name]["bytes"]
    assert measured == expected


def test_layers_read_weights_that_are_gathered_in_bfloat16_and_updates_add_to_float32(found):
    one = learner(CASES["Sgd"])
    for where, expected in descended(one).items():
        np.testing.assert_allclose(found["bfloat16"]["weights"][where], expected, 1e-6, 1e-6)
    measured, expected = found["bfloat16"]["bytes"]
    assert measured == expected
    weights = [weight for _, weight in sorted(one.weights().items())]
    for chunks, weight in zip(found["bfloat16"]["chunks"], weights, strict=True):
        layers = math.prod(weight.stack_shape)
        assert chunks == [layers * -(-weight.size // 4)] * 4
    np.testing.assert_allclose(*found["bfloat16"]["metrics"], rtol=1e-6)  # of float32 weights


def test_a_layout_says_what_each_replica_keeps():
    one = learner(CASES["Adam"])
    named = Replicated.params(devices=["CPU:0", "CPU:1"], shard_update=True).build()
    assert str(named.layout(one).slots["matrix"]["m"]) == "[-, -]/data"
    assert Replicated.params(shard_update=True).build().layout(one) is None  # not yet known
    assert Replicated.params(devices=["CPU:0"]).build().layout(one) is None


def test_one_replica_gathers_no_weights_and_others_only_after_an_update_in_chunks():
    one = learner(CASES["Adam"])
    runtime = Replicated.params(shard_update=True, gather_dtype="bfloat16").build()
    with pytest.raises(ParamError, match="one replica gathers no weights"):
        runtime.start(one, initial_state(one))
    with pytest.raises(ParamError, match="is for weights that shard_update=True gathers: set both"):
        Replicated.params(gather_dtype="bfloat16").build()


def test_an_update_in_chunks_is_not_compiled_for_one_replica():
    with pytest.raises(ParamError, match="shard_update=True adds up over replicas"):
        Replicated.params(shard_update=True, xla=True).build()
