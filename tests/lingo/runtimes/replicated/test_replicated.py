"""Replicas compute what one device does, whatever they share, and agree bit for bit.

Numbers differ by the order of sums alone. `on_replicas.py` computes them, on three virtual devices
and in two processes.
"""

import json
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import lingo
from lingo.cli.workers import free_addresses
from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.learner.state import num_bytes
from lingo.runtimes.replicated import replicated
from lingo.runtimes.replicated.replicated import Replicated
from tests.lingo.runtimes.child import QUICK_TO_COMPILE, ROOT, printed
from tests.lingo.runtimes.replicated.test_groups import assert_descended

PROGRAM = pathlib.Path(__file__).with_name("on_replicas.py")
pytestmark = pytest.mark.xdist_group("replicated")  # the programs run once


TEXT_RUNTIMES = ["replicated", "chunks"]
"""The runtimes that train language models."""
over_text_runtimes = pytest.mark.parametrize("name", TEXT_RUNTIMES)


def computed(folder: pathlib.Path, runtimes: list[str], **environment: str) -> dict[str, Any]:
    environment |= {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment |= QUICK_TO_COMPILE
    out = printed(str(PROGRAM), *runtimes, cwd=folder, env=environment)
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return computed(tmp_path_factory.mktemp("devices"), TEXT_RUNTIMES)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    cluster, folder = {"worker": free_addresses(2)}, tmp_path_factory.mktemp("workers")

    def start(index: int) -> dict[str, Any]:
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        return computed(folder, TEXT_RUNTIMES, TF_CONFIG=json.dumps(config))

    with ThreadPoolExecutor() as threads:
        return list(threads.map(start, range(2)))


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


@pytest.mark.parametrize("name", ["replicated", "xla", "chunks"])
def test_seven_rows_two_denominators_clipping_and_averages_on_three_replicas(found, name):
    many, one = found[f"two_terms/{name}"], found["two_terms/local"]
    assert_close(many["state"], one["state"])
    scalars = {k: v[:4] for k, v in one["report"]["scalars"].items()}  # before what is not finite
    assert_close({k: v[:4] for k, v in many["report"]["scalars"].items()}, scalars)
    assert_close(many["metrics"], one["metrics"])


@pytest.mark.parametrize("name", ["replicated", "chunks"])
def test_all_replicas_skip_a_step_that_is_not_finite_on_one(found, name):
    report = found[f"two_terms/{name}"]["report"]
    assert report["first_non_finite"] == found["two_terms/local"]["report"]["first_non_finite"]
    assert [step >= 0 for step in report["first_non_finite"]] == [False] * 4 + [True, False]


@pytest.mark.parametrize("name", ["replicated", "xla"])
def test_replicas_update_the_rows_that_any_of_them_looked_up(found, name):
    assert_close(found[f"looked_up/{name}"], found["looked_up/local"])


@over_text_runtimes
def test_replicas_fill_up_their_rows_to_equal_micro_batches(found, name):
    """Of 8 rows three replicas have 3, which they cut into two parts of four micro-batches.

    The model is rematerialized and has dropout.
    """
    many, one = found[f"stages/{name}"], found["stages/local"]
    assert_close(many["report"]["scalars"], one["report"]["scalars"], tol=1e-5)
    assert_close(many["metrics"], one["metrics"], tol=1e-5)
    assert_close(many["state"], one["state"], tol=1e-4)  # Adam divides by what is nearly zero


@over_text_runtimes
def test_texts_are_those_of_one_device_also_of_fewer_prompts_than_replicas(found, name):
    many, one = found[f"decoded/{name}"], found["decoded/local"]
    for num in ("4", "1"):
        assert many[num]["tokens"] == one[num]["tokens"]
        assert_close(until_the_end(many[num]), until_the_end(one[num]), tol=1e-5)


@over_text_runtimes
def test_predictions_are_those_of_one_device_also_of_fewer_examples_than_replicas(found, name):
    for many, one in zip(found[f"predicted/{name}"], found["predicted/local"], strict=True):
        assert many.keys() == one.keys() == {"tokens", "log_probs", "target_log_probs", "weights"}
        assert many["tokens"] == one["tokens"]
        assert_close(many["target_log_probs"], one["target_log_probs"], 1e-5)


def test_all_replicas_hold_the_same_bits(found):
    assert set(found["num_copies"]) == {3}
    assert set(found["copies"]) == {1}


def test_a_step_adds_up_once_a_type_beside_the_norms(found):
    assert found["collectives"] == 3 * 2  # all is float32


def test_a_loop_of_steps_is_done_whole_or_not_at_all(found):
    assert found["taken_back"]


def test_a_state_on_the_host_stays_and_another_can_be_loaded(found):
    assert found["kept"]
    assert found["loaded"]
    assert found["graph"] > 100


def test_two_processes_compute_what_one_device_does(workers, found):
    assert workers[0]["two_terms"] == workers[1]["two_terms"]  # NaN is none of what is compared
    assert_close(workers[0]["two_terms"]["state"], found["two_terms/local"]["state"])
    assert_close(workers[0]["two_terms"]["metrics"], found["two_terms/local"]["metrics"])


def test_two_processes_that_update_chunks_save_each_element_of_slots_once(workers, found):
    first, second = (one["chunks"] for one in workers)
    whole = []
    for here, there in zip(first["state"], second["state"], strict=True):
        own, other = np.isfinite(here), np.isfinite(there)
        assert (own & other).all() or (own != other).all()
        whole.append(np.where(own, here, there).tolist())
    assert np.isnan(np.concatenate(first["state"])).any()  # neither has the whole state
    assert_close(whole, found["two_terms/local"]["state"])
    for one in (first, second):
        assert_close(one["metrics"], found["two_terms/local"]["metrics"])


def test_a_process_that_has_chunks_does_not_return_the_state_alone(workers):
    assert [one["alone"] for one in workers] == [
        "parts of the state are only in other processes"
    ] * 2


@over_text_runtimes
def test_each_feeds_its_rows_and_has_all_texts(workers, name):
    assert [one["rows"] for one in workers] == [[0, 4], [4, 7]]
    decoded = [one[f"decoded/{name}"] for one in workers]
    assert decoded[0] == decoded[1] == workers[0]["decoded/replicated"]
    assert np.shape(decoded[0]["4"]["tokens"])[:2] == (4, 2)
    assert np.shape(decoded[0]["1"]["tokens"])[:2] == (1, 2)


@over_text_runtimes
def test_each_has_all_predictions(workers, name):
    predicted = [one[f"predicted/{name}"] for one in workers]
    assert predicted[0] == predicted[1] == workers[0]["predicted/replicated"]
    assert [np.shape(one["tokens"]) for one in predicted[0]] == [(7, 5), (1, 5)]


def test_a_group_of_the_examples_of_both_is_normalized_as_numpy_does(workers):
    assert workers[0]["distances"] == workers[1]["distances"]
    assert_descended(workers[0]["distances"], 8)


def test_they_agree(workers):
    for one in workers:
        assert one["any"] == [True, False]
        assert one["shared"] == "hello"


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


def test_a_device_that_is_not_there_is_named_beside_those_that_are():
    with pytest.raises(ParamError, match=r"names 'GPU:7', but there are CPU:0"):
        replicated._mirrored_strategy(("GPU:7",))


def test_a_processor_is_one_replica():
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


def test_devices_are_for_one_process(monkeypatch):
    monkeypatch.setattr(replicated, "workers", lambda: (None, None))
    with pytest.raises(ParamError, match="TF_CONFIG names several"):
        Replicated.params(devices=["CPU:0"]).build().join()
