"""Memory: what cannot fit is refused before anything is drawn."""

import json
import resource
import types

import pytest

import lingo
from lingo.config.params import ParamError
from lingo.inspection import memory
from lingo.inspection.memory import check_memory, memory_bytes, size
from lingo.learner.state import num_bytes
from lingo.runtimes.layout import bytes_per_device
from lingo.runtimes.mesh import engine


def built(*overrides: str):
    return lingo.get("lm.source.tiny", *overrides).build()


def test_the_state_is_weights_and_slots():
    adam, plain = built(), built("optimizer=Sgd(learning_rate=0.1)")
    number = 824_832
    sizes = [sum(num_bytes(one.learner).values()) for one in (adam, plain)]
    assert sizes == [3 * 4 * number, 4 * number]
    check_memory(adam)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("exp.model_dim=16777216", "task: weights, .* take .* PiB, and this machine has"),
        ("train_input.batch_size=1000000000000", "train_input: a batch takes .* PiB, and this"),
        ("train_input.length=1000000000000", "smaller batch_size or length"),
    ],
)
def test_what_is_larger_than_the_machine_is_refused(override, message):
    with pytest.raises(ParamError, match=message):
        check_memory(built(override))


def test_on_a_mesh_each_virtual_device_has_its_part_in_this_machine(monkeypatch):
    split = built("runtime=Mesh(model=8,shard_weights=True)", "exp.model_dim=65536")
    layout = split.runtime.layout(split.learner)
    found = bytes_per_device(split.learner, layout)
    one = sum(found[kind].per_device for kind in ("weights", "slots", "statistics"))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2 * one)
    check_memory(split)  # on other devices than processors
    monkeypatch.setattr(type(split.runtime), "num_host_devices", lambda _: 3)
    with pytest.raises(ParamError, match=r"task: weights, .* take"):
        check_memory(split)


def test_virtual_devices_are_shared_out_among_the_workers(monkeypatch):
    runtime = built("runtime=Mesh(data=8)").runtime
    virtual = types.SimpleNamespace(config=types.SimpleNamespace(jax_platforms="cpu"))
    monkeypatch.setattr(engine, "engine", lambda: virtual)
    assert runtime.num_host_devices() == 8
    workers = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"index": 1}})
    monkeypatch.setenv("TF_CONFIG", workers)
    assert runtime.num_host_devices() == 4
    virtual.config.jax_platforms = None  # accelerators have memory of their own
    assert runtime.num_host_devices() == 1


def test_a_limit_of_the_container_or_of_the_shell_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "none")))
    limit.write_text("max\n")
    assert memory_bytes() > 2**20
    limit.write_text("1048576\n")
    assert memory_bytes() == 2**20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**19, 2**19))
    assert memory_bytes() == 2**19


def test_sizes_have_few_digits_and_a_unit():
    sizes = (0, 1023, 1024, 1500 * 2**20, 2**60)
    assert [*map(size, sizes)] == ["0 B", "1023 B", "1 KiB", "1.46 GiB", "1024 PiB"]
