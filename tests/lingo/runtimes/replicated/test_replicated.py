"""Replicas compute what one device does, whatever they share, and agree bit for bit.

Numbers differ by the order of sums alone. `on_replicas.py` computes them, on three virtual devices
and in two processes.
"""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.state import num_bytes
from lingo.runtimes.replicated import replicated
from lingo.runtimes.replicated.replicated import Replicated

ROOT = pathlib.Path(__file__).parents[4]
PROGRAM = pathlib.Path(__file__).with_name("on_replicas.py")
pytestmark = pytest.mark.xdist_group("replicated")  # the programs run once
TIMEOUT = 300.0  # seconds


def begun(folder: pathlib.Path, **environment: str) -> subprocess.Popen[str]:
    environment |= {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return printed(begun(tmp_path_factory.mktemp("devices")))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    folder = tmp_path_factory.mktemp("workers")
    tasks = [{"type": "worker", "index": i} for i in range(2)]
    configs = [{"cluster": {"worker": addresses}, "task": task} for task in tasks]
    processes = [begun(folder, TF_CONFIG=json.dumps(config)) for config in configs]
    with ThreadPoolExecutor() as threads:  # one that fails must not wait for what others print
        return list(threads.map(printed, processes))


def assert_close(many: Any, one: Any, tol: float = 1e-6) -> None:
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, tol, tol), many, one)


def until_the_end(decoded: dict[str, Any]) -> list[float]:
    """Returns the log-probabilities up to each row's end: what comes after means nothing."""
    found = []
    for number, samples in enumerate(np.array(decoded["tokens"])):
        for sample, tokens in enumerate(samples):
            ends = [*np.flatnonzero(tokens == 0), number + 4 - 1]  # four new tokens at most
            found += decoded["log_probs"][number][sample][: min(ends) + 1]
    return found


# ---- virtual devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["replicated", "xla"])
def test_seven_rows_two_denominators_clipping_and_averages_on_three_replicas(found, name):
    many, one = found[f"two_terms/{name}"], found["two_terms/local"]
    assert_close(many["state"], one["state"])
    scalars = {k: v[:4] for k, v in one["report"]["scalars"].items()}  # before what is not finite
    assert_close({k: v[:4] for k, v in many["report"]["scalars"].items()}, scalars)
    assert_close(many["metrics"], one["metrics"])


def test_all_replicas_skip_a_step_that_is_not_finite_on_one(found: dict[str, Any]) -> None:
    report = found["two_terms/replicated"]["report"]
    assert report["not_finite"] == found["two_terms/local"]["report"]["not_finite"]
    assert [step >= 0 for step in report["not_finite"]] == [False] * 4 + [True, False]


def test_replicas_fill_up_their_rows_to_equal_micro_batches(found: dict[str, Any]) -> None:
    """Of 8 rows three replicas have 3, which they cut into two parts of four micro-batches.

    The model is rematerialized and has dropout.
    """
    many, one = found["stages/replicated"], found["stages/local"]
    assert_close(many["report"]["scalars"], one["report"]["scalars"], tol=1e-5)
    assert_close(many["metrics"], one["metrics"], tol=1e-5)
    assert_close(many["state"], one["state"], tol=1e-4)  # Adam divides by what is nearly zero


def test_texts_are_those_of_one_device_also_of_fewer_prompts_than_replicas(found):
    many, one = found["decoded/replicated"], found["decoded/local"]
    for num in ("4", "1"):
        assert many[num]["tokens"] == one[num]["tokens"]
        assert_close(until_the_end(many[num]), until_the_end(one[num]), tol=1e-5)


def test_all_replicas_hold_the_same_bits(found: dict[str, Any]) -> None:
    assert set(found["num_copies"]) == {3}
    assert set(found["copies"]) == {1}


def test_a_step_adds_up_once_a_type_beside_the_norms(found: dict[str, Any]) -> None:
    assert found["collectives"] == 3 * 2  # all is float32


def test_a_loop_of_steps_is_done_whole_or_not_at_all(found: dict[str, Any]) -> None:
    assert found["taken_back"]


def test_a_state_on_the_host_stays_and_another_can_be_loaded(found: dict[str, Any]) -> None:
    assert found["kept"]
    assert found["loaded"]
    assert found["graph"] > 100


# ---- processes ----------------------------------------------------------------------------------


def test_two_processes_compute_what_one_device_does(workers, found):
    assert workers[0]["two_terms"] == workers[1]["two_terms"]  # NaN is none of what is compared
    assert_close(workers[0]["two_terms"]["state"], found["two_terms/local"]["state"])
    assert_close(workers[0]["two_terms"]["metrics"], found["two_terms/local"]["metrics"])


def test_each_feeds_its_rows_and_has_all_texts(workers: list[dict[str, Any]]) -> None:
    assert [one["rows"] for one in workers] == [[0, 4], [4, 7]]
    assert workers[0]["decoded"] == workers[1]["decoded"]
    assert np.shape(workers[0]["decoded"]["4"]["tokens"])[:2] == (4, 2)
    assert np.shape(workers[0]["decoded"]["1"]["tokens"])[:2] == (1, 2)


def test_they_agree(workers: list[dict[str, Any]]) -> None:
    for one in workers:
        assert one["any"] == [True, False]
        assert one["shared"] == "hello"


# ---- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "tpu", "message"),
    [
        ([], None, "names each device once"),
        (["GPU:0", "GPU:0"], None, "names each device once"),
        (["GPU:0"], "local", "a TPU computes on all cores"),
    ],
)
def test_devices_are_named_once_and_not_beside_a_tpu(devices, tpu, message):
    with pytest.raises(ParamError, match=message):
        Replicated.params(devices=devices, tpu=tpu).build()


def test_a_device_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(ParamError, match=r"names 'GPU:7', but there are CPU:0"):
        replicated._mirrored_strategy(("GPU:7",))


def test_a_processor_is_one_replica() -> None:
    runtime = Replicated.params().build()
    assert runtime._names() == ("CPU:0",)
    assert runtime.num_host_devices() == 1
    assert runtime.matmul_flops_per_second("float32") > 0


def test_replicas_on_processors_each_hold_the_state_in_this_machine(monkeypatch):
    learner = lingo.get("lm.source.tiny").build().learner
    whole = sum(num_bytes(learner).values())
    monkeypatch.setattr(Replicated, "_names", lambda _: ("CPU:0", "CPU:1", "CPU:2"))
    assert Replicated.params().build().host_bytes(learner) == 3 * whole
    monkeypatch.setattr(Replicated, "_names", lambda _: ("GPU:0", "GPU:1"))
    assert Replicated.params().build().host_bytes(learner) == whole


def test_devices_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "workers", lambda: (None, None))
    with pytest.raises(ParamError, match="TF_CONFIG names several"):
        Replicated.params(devices=["CPU:0"]).build().join()
