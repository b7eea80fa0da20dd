"""Every runtime computes the same, and reads what any other has written.

Two or three virtual devices of TensorFlow and eight of JAX, in one process that trains on all (see
`everywhere.py`). Numbers differ by the order of sums alone.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from lingo.checkpoints import store
from lingo.checkpoints.checkpoint import digest
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed

PROGRAM = pathlib.Path(__file__).with_name("everywhere.py")
pytestmark = pytest.mark.xdist_group("same")  # the programs run once

RUNTIMES = [
    *("local", "replicated", "replicated_update"),
    *("data8", "data2_model4", "sharded_weights", "sharded_update"),
]
over_many = pytest.mark.parametrize("name", RUNTIMES[1:])


class Trained(NamedTuple):
    """What every runtime computed, by its name, and its checkpoint."""

    found: dict[str, dict[str, Any]]
    tensors: dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("everywhere")
    env = {"PATH": "", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    env |= QUICK_TO_COMPILE
    out = printed(str(PROGRAM), str(folder), *RUNTIMES, cwd=folder, env=env)
    saved = {name: store.find(folder / name, None, of=folder) for name in RUNTIMES}
    tensors = {name: checkpoint.read(checkpoint.tensors) for name, checkpoint in saved.items()}
    return Trained(json.loads(out.splitlines()[-1]), tensors)


@over_many
def test_losses_are_those_of_one_device_however_many_steps_a_call_does(trained, name):
    losses = trained.found["local"]["losses"]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(trained.found[name]["losses"], losses, rtol=1e-5)


@over_many
def test_so_are_weights_slots_and_averages(trained, name):
    one, many = trained.tensors["local"], trained.tensors[name]
    assert many.keys() == one.keys()
    for tensor, value in one.items():
        np.testing.assert_allclose(many[tensor], value, rtol=1e-4, atol=1e-5, err_msg=tensor)


def test_every_runtime_reads_the_checkpoint_of_every_other_bit_by_bit(trained):
    written = {
        name: {tensor: digest(value) for tensor, value in trained.tensors[name].items()}
        for name in RUNTIMES
    }
    for name in RUNTIMES:
        assert trained.found[name]["loaded"] == written, name


def test_every_runtime_begins_with_the_weights_and_slots_of_another_run(trained):
    one = {tensor: digest(value) for tensor, value in trained.tensors["local"].items()}
    assert {tensor.split("/")[1] for tensor in one if tensor.startswith("slots/")} == {
        *("m", "v", "ema")
    }
    for name in RUNTIMES:
        assert trained.found[name]["begun"] == one, name


def test_each_resumes_from_the_checkpoint_of_one_device_with_its_losses(trained):
    without_break = trained.found["local"]["continued"]
    assert trained.found["local"]["resumed"] == without_break
    for name in RUNTIMES[1:]:
        resumed = trained.found[name]["resumed"]
        np.testing.assert_allclose(resumed, without_break, rtol=1e-5, err_msg=name)


@over_many
def test_evaluations_are_equal_though_a_batch_of_6_divides_by_no_mesh(trained, name):
    expected = trained.found["local"]["metrics"]
    assert {"loss", "accuracy", "bits_per_byte"} <= expected.keys()
    assert trained.found[name]["metrics"] == pytest.approx(expected, rel=1e-6)


@over_many
def test_the_likeliest_texts_are_equal(trained, name):
    assert trained.found[name]["texts"] == trained.found["local"]["texts"]


@pytest.mark.parametrize("name", ["replicated", "data8"])
@pytest.mark.parametrize("case", ["groups", "uneven"])
def test_batches_are_normalized_as_on_one_device_or_not_at_all(trained, name, case):
    expected, found = (trained.found[n]["normalized"][case] for n in ("local", name))
    if (name, case) == ("replicated", "uneven"):
        assert "5 examples do not divide into 2 equal parts, for 2 replicas" in found
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_layers_of_keras_compute_the_same_or_are_refused(trained):
    local, replicated, mesh = (
        trained.found[n]["keras"] for n in ("local", "replicated", "data2_model4")
    )
    np.testing.assert_allclose(replicated[0], local[0], rtol=1e-5)
    for mine, one in zip(mesh, local, strict=True):
        np.testing.assert_allclose(mine, one, rtol=1e-5)
    assert "model would take statistics of each replica's examples alone" in replicated[1]


@pytest.mark.parametrize("name", ["replicated", "replicated_update", "data8", "sharded_update"])
def test_losses_and_the_loss_scale_of_float16_are_those_of_one_device(trained, name):
    expected, found = trained.found["local"]["float16"], trained.found[name]["float16"]
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    assert expected[-2:] == [3.0, 2.0**15]  # finite steps, scale
