"""The fields of a mesh on a TPU, and what it refuses."""

from collections.abc import Callable

import pytest

from lingo.config.params import ParamError, Params
from lingo.learner.state import initial_state, num_bytes
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.tpu.cores import NoTpu
from lingo.runtimes.tpu.tpu_mesh import TpuMesh


def test_its_fields_are_those_of_mesh_and_split_alike(experiment, text):
    split = {"data": 2, "model": 2, "shard_update": True}
    params = experiment(text)
    learner = params.build().learner
    on_tpu, elsewhere = (cls.params(**split).build() for cls in (TpuMesh, Mesh))
    assert on_tpu.layout(learner) == elsewhere.layout(learner)


def test_it_starts_on_a_tpu_only(experiment: Callable[..., Params], text: str) -> None:
    built = experiment(text).set(runtime=TpuMesh.params(model=2)).build()
    with pytest.raises(NoTpu, match="no TPU of this machine") as raised:
        built.runtime.start(built.learner, initial_state(built.learner))
    assert raised.value.exit_code == 2  # as of other devices that are not here
    with pytest.raises(NoTpu, match="no TPU of this machine"):
        built.runtime.matmul_flops_per_second("float32")


def test_a_processor_is_no_tpu():
    with pytest.raises(ParamError, match="devices=8: TpuMesh computes on the cores of a TPU"):
        TpuMesh.params().build().make_devices(8)


def test_the_whole_state_passes_through_the_memory_of_this_machine_once(experiment, text):
    learner = experiment(text).build().learner
    whole = sum(num_bytes(learner).values())
    for split in ({"data": 64}, {"model": 4}, {"data": 8, "shard_weights": True}):
        assert TpuMesh.params(**split).build().host_bytes(learner) == whole
