"""One processor as several devices, chosen before the engine that computes starts."""

import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError
from lingo.runtimes.devices import advise_devices, split_processor
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.tpu.tpu_mesh import TpuMesh
from tests.lingo.runtimes.child import printed


def test_the_advice_is_one_that_can_be_followed():
    assert advise_devices(4096) == "--devices=4096 makes so many of the processor"
    assert advise_devices(4097) == "--devices makes at most 4096 of the processor"


@pytest.mark.parametrize("kind", [Mesh, TpuMesh])
def test_a_mesh_that_no_machine_has_is_refused(kind):
    with pytest.raises(ParamError, match="data=10000000000: 10,000,000,000 devices, and at most"):
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
