"""Metrics are those of one batch on one device, whatever devices and processes share the examples.

Numbers differ by the rounding of an example's own float32 values alone. `on_devices.py` computes
them; neither its 11 examples nor its batches of 3 divide by the number of devices.
"""

from __future__ import annotations

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from lingo.cli.workers import free_addresses
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed

Metrics = dict[str, dict[str, float]]

PROGRAM = pathlib.Path(__file__).with_name("on_devices.py")
TASKS = {
    "classification": {"loss", "accuracy", "top5", "classes/f1_macro"},
    "detection": {"loss/boxes", "loss/classes", "ap", "ap50", "coco/ar100"},
    "segmentation": {"loss", "accuracy", "dice"},
    "language model": {"loss", "accuracy", "perplexity"},
}
pytestmark = pytest.mark.xdist_group("evaluation_on_devices")  # the programs run once


@pytest.fixture(scope="module")
def compute(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")

    def run(argument: str, **environment: str) -> dict:
        environment |= {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        environment |= QUICK_TO_COMPILE
        lines = printed(str(PROGRAM), argument, cwd=folder, env=environment).splitlines()
        return json.loads(lines[-1])  # Gloo prints some before

    return run


@pytest.fixture(scope="module")
def on_one(compute) -> dict[str, Metrics]:
    return compute("1")


def assert_equal(found: Metrics, expected: Metrics) -> None:
    assert found.keys() == TASKS.keys()
    for task, names in TASKS.items():
        assert names <= {name for name, value in expected[task].items() if value > 0}, task
        assert found[task] == pytest.approx(expected[task], rel=2e-6), task


def test_one_device_of_any_runtime(on_one):
    assert [*on_one] == ["one batch", "local", "replicated", "mesh"]
    for found in on_one.values():
        assert_equal(found, on_one["one batch"])


@pytest.mark.parametrize("num_devices", [2, 8])
def test_several_devices(compute, on_one, num_devices):
    runtimes = compute(str(num_devices))
    assert ("parts of images" in runtimes) == (num_devices == 8)
    for found in runtimes.values():
        assert_equal(found, on_one["one batch"])


@pytest.mark.parametrize("runtime", ["mesh", "replicated"])
def test_two_processes(compute, on_one, runtime):
    cluster = {"worker": free_addresses(2)}

    def start(index: int) -> Metrics:
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        return compute(runtime, TF_CONFIG=json.dumps(config))

    with ThreadPoolExecutor() as threads:
        for found in threads.map(start, range(2)):
            assert_equal(found, on_one["one batch"])
