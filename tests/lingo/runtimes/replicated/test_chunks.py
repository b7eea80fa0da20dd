"""Replicas that update chunks compute what one device does; `on_chunks.py` computes it."""

import json
import pathlib

import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.child import ROOT, printed
from tests.lingo.runtimes.mesh.test_update_sharding import CASES, learner

PROGRAM = pathlib.Path(__file__).with_name("on_chunks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path_factory.mktemp("chunks")
    return json.loads(printed(str(PROGRAM), cwd=folder, env=environment).splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_in_chunks_are_those_of_one_device(found, name):
    for chunks, one in zip(*reversed(found[name]["states"]), strict=True):
        np.testing.assert_allclose(chunks, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_replica_keeps_a_quarter_of_every_slot(found, name):
    for chunks, size, layers in zip(
        *map(found[name].get, ("chunks", "sizes", "layers")), strict=True
    ):
        assert chunks == [layers * -(-size // layers // 4)] * 4


def test_a_state_of_one_device_is_loaded_bit_by_bit(found):
    assert all(found[name]["loaded"] for name in CASES)


def test_a_step_that_is_not_finite_changes_nothing(found):
    assert found["skips"]


def test_a_layout_says_what_each_replica_keeps():
    one = learner(CASES["Adam"])
    named = Replicated.params(devices=["CPU:0", "CPU:1"], shard_update=True).build()
    assert str(named.layout(one).slots["matrix"]["m"]) == "[-, -]/data"
    assert Replicated.params(shard_update=True).build().layout(one) is None  # not yet known
    assert Replicated.params(devices=["CPU:0"]).build().layout(one) is None


def test_an_update_in_chunks_is_not_compiled_for_one_replica():
    with pytest.raises(ParamError, match="shard_update=True adds up over replicas"):
        Replicated.params(shard_update=True, xla=True).build()
