"""One processor as several devices, chosen before the engine that computes starts."""

from types import SimpleNamespace

import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.runtimes import devices as tensorflow_devices
from lingo.runtimes import local
from lingo.runtimes.devices import Gpu, advise_devices, advise_settings, split_processor
from lingo.runtimes.local import Local
from lingo.runtimes.mesh import engine
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.tpu.tpu_mesh import TpuMesh
from tests.lingo.runtimes.child import printed


def test_the_advice_is_one_that_can_be_followed():
    assert advise_devices(4096) == "--devices=4096 makes 4096 of the CPU"
    assert advise_devices(4097) == "--devices makes at most 4096 of the CPU"


@pytest.mark.parametrize("kind", [Mesh, TpuMesh])
def test_a_mesh_that_no_machine_has_is_refused(kind):
    with pytest.raises(ParamError, match="data=10000000000: 10,000,000,000 devices are too many"):
        kind.params(data=10**10).build()


def test_a_process_has_as_many_devices_as_it_asked_for():
    code = (
        "from lingo.config.lazy import tf\n"
        "from lingo.runtimes.local import Local\n"
        "Local.params().build().make_devices(8)\n"
        "print([device.device_type for device in tf.config.list_logical_devices()])\n"
        "with tf.device('CPU:7'): print(tf.function(lambda x: x + x)(tf.constant(1)).device[-5:])\n"
    )
    assert printed("-c", code) == f"{['CPU'] * 8}\nCPU:7\n"


def test_a_mesh_has_them_in_jax_and_tensorflow_has_one():
    code = (
        "from lingo.config.lazy import tf\n"
        "from lingo.runtimes.mesh.mesh import Mesh\n"
        "mesh = Mesh.params(data=2048).build()\n"
        "mesh.make_devices(2048)\n"
        "import jax\n"
        "print(len(jax.devices()), len(tf.config.list_logical_devices()))\n"
    )
    assert printed("-c", code) == "2048 1\n"


def test_it_is_too_late_once_something_was_computed():
    there = len(tf.config.list_logical_devices("CPU"))
    split_processor(there)
    with pytest.raises(ParamError, match=f"TensorFlow has already started with {there}"):
        split_processor(there + 1)


H100, T4, OTHER = Gpu("NVIDIA H100", (9, 0)), Gpu("Tesla T4", (7, 5)), Gpu("", None)


@pytest.mark.parametrize(
    ("gpus", "dtype", "xla", "settings"),
    [
        ([], "float32", False, []),
        ([H100, H100], "float32", False, ["task.dtype=bfloat16", "runtime.xla=True"]),
        ([H100], "bfloat16", False, ["runtime.xla=True"]),
        ([H100], "float32", True, ["task.dtype=bfloat16"]),
        ([H100], "bfloat16", None, []),
        ([H100, T4], "float32", True, []),
        ([T4], "float32", False, ["runtime.xla=True"]),
        ([OTHER], "float32", False, ["runtime.xla=True"]),
    ],
)
def test_advice_names_what_is_faster_on_all_gpus(gpus, dtype, xla, settings):
    advice = advise_settings(gpus, dtype=dtype, xla=xla)
    assert [line.rpartition("--set=")[2] for line in advice] == settings
    assert all((gpus[0].name or "this GPU") in line for line in advice)


def test_a_runtime_advises_by_its_own_devices_and_settings(monkeypatch):
    monkeypatch.setattr(local, "list_gpus", lambda: [H100])
    assert len(Local.params().build().advice("float32")) == 2
    assert Local.params(xla=True).build().advice("bfloat16") == []
    assert Local.params(stage_devices=2).build().advice("bfloat16") == []


def test_a_mesh_without_the_gpus_of_the_machine_is_refused_unless_asked_for():
    code = (
        "from lingo.config.params import ParamError\n"
        "from lingo.runtimes.devices import Gpu\n"
        "from lingo.runtimes.mesh import engine\n"
        "from lingo.runtimes.mesh.mesh import Mesh\n"
        "engine.list_gpus = lambda: [Gpu('NVIDIA H100', (9, 0))] * 2\n"
        "topology = Mesh.params().build().topology()\n"
        "try: engine.device_mesh(topology)\n"
        "except ParamError as error: print(error)\n"
        "engine.engine().config.update('jax_platforms', 'cpu')  # as --devices=1 does\n"
        "print(engine.device_mesh(topology).size)\n"
    )
    refused, size = printed("-c", code).splitlines()
    assert "2 GPUs that TensorFlow sees would be idle: pip install 'lingo-tf[mesh-gpu]'" in refused
    assert size == "1"


def test_peak_memory_is_the_largest_of_those_that_count_it(monkeypatch):
    peaks = {"GPU:0": 5, "GPU:1": 7}

    def info(name):
        if name not in peaks:
            raise ValueError("Allocator stats not available")
        return {"peak": peaks[name]}

    names = {"GPU": ["GPU:0", "GPU:1"], "TPU": ["TPU:0"], "CPU": ["CPU:0"]}
    found = {kind: [SimpleNamespace(name=one) for one in of] for kind, of in names.items()}
    monkeypatch.setattr(tf.config, "list_logical_devices", found.get)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
    assert tensorflow_devices.peak_memory_bytes() == 7
    peaks.clear()
    assert tensorflow_devices.peak_memory_bytes() == 0


@pytest.mark.parametrize(
    ("statistics", "peak"),
    [([{"peak_bytes_in_use": 5}, {"peak_bytes_in_use": 7}], 7), ([None, {}], 0)],
)
def test_peak_memory_of_a_mesh_is_the_largest_of_the_devices_here(monkeypatch, statistics, peak):
    devices = [SimpleNamespace(memory_stats=lambda one=one: one) for one in statistics]
    jax = SimpleNamespace(local_devices=lambda: devices)
    monkeypatch.setattr(engine, "engine", lambda: jax)
    assert engine.peak_memory_bytes() == peak
