"""Groups of a batch norm that several replicas share are those of one device, and of NumPy.

`on_groups.py` trains on four virtual devices, of which two share a group.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed
from tests.lingo.runtimes.replicated import on_groups

Tensors = dict[str, np.ndarray]  # by program path
PROGRAM = pathlib.Path(__file__).with_name("on_groups.py")
pytestmark = pytest.mark.xdist_group("groups")  # the program runs once


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment |= QUICK_TO_COMPILE
    folder = tmp_path_factory.mktemp("devices")
    return json.loads(printed(str(PROGRAM), cwd=folder, env=environment).splitlines()[-1])


def descend(before: Tensors, size: int) -> tuple[Tensors, Tensors]:
    """Returns weights and states after two steps of `Distance`, and their averages, in float64.

    The gradient is that of Ioffe and Szegedy 2015, sec. 3, for groups of `size` examples.
    """
    tensors = averages = {name: np.array(value) for name, value in before.items()}
    data = on_groups.batches(2)
    for x, target in zip(data["x"].astype(np.float64), data["y"], strict=True):
        h = x @ tensors["w"] + on_groups.OFFSET
        groups = h.reshape(-1, size, 2)
        mean, variance = groups.mean(1, keepdims=True), groups.var(1, keepdims=True)
        root = np.sqrt(variance + on_groups.NORM["epsilon"])
        normal = (groups - mean) / root
        y = normal * tensors["norm/gamma"] + tensors["norm/beta"]
        error = (y - target.reshape(y.shape)) * 2 / len(x)
        slope = error * tensors["norm/gamma"]
        along = normal * (slope * normal).mean(1, keepdims=True)
        inner = (slope - slope.mean(1, keepdims=True) - along) / root
        decay = on_groups.NORM["decay"]
        tensors = {
            "w": tensors["w"] - on_groups.RATE * x.T @ inner.reshape(h.shape),
            "norm/gamma": tensors["norm/gamma"] - on_groups.RATE * (error * normal).sum((0, 1)),
            "norm/beta": tensors["norm/beta"] - on_groups.RATE * error.sum((0, 1)),
        } | {
            name: decay * tensors[name] + (1 - decay) * value.mean(0)
            for name, value in (("norm/moving_mean", h), ("norm/moving_mean_square", h**2))
        }
        averages = {
            name: on_groups.EMA_DECAY * averages[name] + (1 - on_groups.EMA_DECAY) * value
            for name, value in tensors.items()
        }
    return tensors, averages


def distance(tensors: Tensors) -> float:
    """Returns the distance of the first batch in an evaluation, in float64."""
    x, target = (on_groups.batches(2)[name][0].astype(np.float64) for name in ("x", "y"))
    mean = tensors["norm/moving_mean"]
    root = np.sqrt(tensors["norm/moving_mean_square"] - mean**2 + on_groups.NORM["epsilon"])
    y = (x @ tensors["w"] + on_groups.OFFSET - mean) / root * tensors["norm/gamma"] + tensors[
        "norm/beta"
    ]
    return ((y - target) ** 2).sum()


def assert_descended(found: dict[str, Any], size: int) -> None:
    trained, averages = descend(found["before"], size)
    for kind, expected in (("trained", trained), ("ema", averages)):
        assert expected.keys() == found[kind].keys()
        for name, value in found[kind].items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
            assert not np.allclose(value, found["before"][name], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["distance"], distance(averages), rtol=1e-5)


@pytest.mark.parametrize("layout", ["replicated", "data4", "data2_model2"])
def test_a_resnet_has_the_losses_of_one_device_with_lars_and_lamb(found, layout):
    local = found["losses"]["local"]
    assert len(set(local)) == len(local) == 5
    np.testing.assert_allclose(found["losses"][layout], local, rtol=1e-5)


@pytest.mark.parametrize("layout", on_groups.LAYOUTS)
def test_gradients_and_averages_are_those_of_numpy_in_float64(found, layout):
    """The square of the values is 1e5 times their variance: E[x^2] - E[x]^2 would lose it."""
    assert_descended(found["distances"][layout], 4)


def test_other_replicas_of_the_same_process_have_groups_of_their_own(found):
    assert_descended(found["two of four"], 8)
