"""Groups of a batch norm that several replicas share are those of one device, and of NumPy.

`on_groups.py` trains on four virtual devices, of which two share a group.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.lingo.runtimes.child import ROOT, printed
from tests.lingo.runtimes.replicated.on_groups import NORM, OFFSET, RATE, batches

PROGRAM = pathlib.Path(__file__).with_name("on_groups.py")
pytestmark = pytest.mark.xdist_group("groups")  # the program runs once


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path_factory.mktemp("devices")
    return json.loads(printed(str(PROGRAM), cwd=folder, env=environment).splitlines()[-1])


def descend(before: dict[str, Any], size: int, num_steps: int = 2) -> dict[str, np.ndarray]:
    """Returns weights and states after the steps of `Distance`, in float64, by program path.

    The gradient is that of Ioffe and Szegedy 2015, sec. 3, for groups of `size` examples.
    """
    tensors = {name: np.array(value) for name, value in before.items()}
    data = {name: value.astype(np.float64) for name, value in batches(num_steps).items()}
    for x, target in zip(data["x"], data["y"], strict=True):
        gamma, beta = tensors["norm/gamma"], tensors["norm/beta"]
        h = x @ tensors["w"] + OFFSET
        groups = h.reshape(-1, size, 2)
        mean, variance = groups.mean(1, keepdims=True), groups.var(1, keepdims=True)
        root = np.sqrt(variance + NORM["epsilon"])
        normal = (groups - mean) / root
        error = (normal * gamma + beta - target.reshape(groups.shape)) * 2 / len(x)
        slope = error * gamma
        along = normal * (slope * normal).mean(1, keepdims=True)
        inner = (slope - slope.mean(1, keepdims=True) - along) / root
        tensors["w"] = tensors["w"] - RATE * x.T @ inner.reshape(h.shape)
        tensors["norm/gamma"] = gamma - RATE * (error * normal).sum((0, 1))
        tensors["norm/beta"] = beta - RATE * error.sum((0, 1))
        for name, value in (("mean", h), ("mean_square", h**2)):
            old = tensors[f"norm/moving_{name}"]
            tensors[f"norm/moving_{name}"] = NORM["decay"] * old + (1 - NORM["decay"]) * value.mean(
                0
            )
    return tensors


def assert_descended(found: dict[str, Any], size: int) -> None:
    expected = descend(found["before"], size)
    assert expected.keys() == found["after"].keys()
    for name, value in found["after"].items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert not np.allclose(value, found["before"][name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", ["replicated", "data4", "data2_model2"])
def test_a_resnet_has_the_losses_of_one_device(found, layout):
    local = found["losses"]["local"]
    assert len(set(local)) == len(local) == 5
    np.testing.assert_allclose(found["losses"][layout], local, rtol=1e-5)


@pytest.mark.parametrize("runtime", ["local", "replicated"])
def test_gradients_and_averages_are_those_of_numpy_in_float64(found, runtime):
    """The square of the values is 1e5 times their variance: E[x^2] - E[x]^2 would lose it."""
    assert_descended(found["distances"][runtime], 4)
