"""What TensorFlow hands to a TPU's compiler: its bridge makes one cluster of each traced call."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import lingo
from lingo.config.lazy import tf
from lingo.learner.state import initial_state
from lingo.mesh.tiles import tiles
from lingo.runtimes.tpu.tpu_mesh import TpuMesh, TpuMeshProgram
from tests.lingo.runtimes.tpu.test_replicas import NUM_REPLICAS, SMALL, TINY, start, strategy

__all__ = ["strategy"]  # a fixture
Sharding = tuple[tuple[int, ...], tuple[int, ...]]


def bridge(function: Any) -> str:
    """Returns the MLIR of the only program of a function, after the passes that form clusters."""
    (concrete,) = function._list_all_concrete_functions()
    passes = "tf-replicated-clustering-bridge-v2"
    return tf.mlir.experimental.convert_function(concrete, pass_pipeline=passes)


def host(text: str) -> str:
    """Returns the function of the host, which runs the cluster."""
    return text[: text.index("func.func private")]


def input_shardings(text: str) -> Counter[Sharding]:
    """Counts the shardings of the cluster's inputs: dimensions and devices."""
    from tensorflow.compiler.xla.xla_data_pb2 import OpSharding

    found = re.search(r"input_sharding_configuration = \[(.*?)\]", text)
    assert found is not None
    shardings: Counter[Sharding] = Counter()
    for literal in re.findall(r'"(.*?)"', found[1]):
        pieces = re.findall(r"\\([0-9A-F]{2})|(.)", literal)
        sharding = OpSharding.FromString(bytes(int(a, 16) if a else ord(b) for a, b in pieces))
        devices = tuple(sharding.tile_assignment_devices)
        shardings[tuple(sharding.tile_assignment_dimensions), devices] += 1
    return shardings


def test_all_cores_of_a_mesh_compute_one_cluster_whose_inputs_are_in_their_parts(absent_tpu):
    mesh = TpuMesh.params(data=2, model=4, shard_update=True)
    built = lingo.get(TINY, *SMALL).set(runtime=mesh).build()
    layout = built.runtime.layout(built.learner)
    cores = absent_tpu(layout.mesh)._replace(devices=("CPU:0",) * 8, hosts=("CPU:0",) * 8)
    program = TpuMeshProgram(built.learner, initial_state(built.learner), layout, cores)
    program.compile(built.train_input.specs(), num_steps=2)
    text = bridge(program._train)
    assert text.count('"tf_device.cluster_func"') == 1
    assert "use_spmd_for_xla_partitioning = true" in text
    assert "num_cores_per_replica = 8" in text
    assert not {"tf.Einsum", "tf.XlaSharding"} & operations(host(text))
    slots = [split for own in layout.slots.values() for split in own.values()]
    assignments = [tiles(split, layout.mesh) for split in [*layout.rest.values(), *slots]]
    wanted = Counter(
        (one.tile_assignment_dimensions, one.tile_assignment_devices)
        for one in assignments
        if not one.is_replicated
    )
    assert wanted <= input_shardings(text)


def test_every_replica_computes_one_cluster(strategy):
    built, program = start(strategy, lingo.get(TINY, *SMALL))
    program.compile(built.train_input.specs(), num_steps=2)
    text = bridge(program._train)
    assert text.count('"tf_device.cluster_func"') == 1
    assert f"n = {NUM_REPLICAS} : i32" in text
    assert "tf.CrossReplicaSum" in operations(text)
    assert not {"tf.Einsum", "tf.CrossReplicaSum"} & operations(host(text))


def operations(text: str) -> set[str]:
    """Returns the types of TensorFlow's operations in a text."""
    return set(re.findall(r'"(tf\.\w+)"', text))
