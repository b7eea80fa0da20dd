"""A TPU's compiler: topologies, and the program that it gets is the one that trains."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from lingo.config.params import ParamError
from lingo.learner.state import initial_state
from lingo.mesh.hlo import tpu
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.runtimes.mesh.engine import device_mesh, explain_engine_errors
from lingo.runtimes.mesh.mesh import Functions, Mesh
from lingo.runtimes.mesh.tpu_compiler import export_call, topology_name


def built(params, mesh):
    params.train_input.batch_size = 8
    return params.set(runtime=mesh).build()


@pytest.mark.parametrize(
    ("generation", "num_devices", "name"),
    [
        ("v5e", 1, "v5e:2x2"),
        ("v5e", 8, "v5e:2x4"),
        ("v5e", 512, "v5e:16x32"),
        ("v6e", 6, "v6e:2x4"),
        ("v6e", 12, "v6e:2x6"),
        ("v5p", 8, "v5p:2x2x2"),
        ("v5p", 1024, "v5p:8x8x16"),
        ("v4", 8, "v4:2x2x2"),
        ("v4", 4, "v4:2x2x1"),
        ("v3", 32, "v3:4x4"),
    ],
)
def test_the_sides_of_a_topology_are_as_alike_as_they_can_be(generation, num_devices, name):
    assert topology_name(generation, num_devices) == name


@pytest.mark.parametrize(
    ("generation", "num_devices", "message"),
    [
        ("v1", 8, "no generation 'v1': v3, v4, v5e, v5p, v6e"),
        ("v5e", 1024, "1024 devices: the TPU compiler has at most 512 of v5e"),
    ],
)
def test_a_topology_that_there_is_not_is_refused(generation, num_devices, message):
    with pytest.raises(ParamError, match=message):
        topology_name(generation, num_devices)


@pytest.mark.parametrize("axes", [{"data": 4, "model": 2}, {"data": 8, "shard_update": True}])
def test_the_exported_steps_compute_what_training_computes(axes, experiment, text):
    one = built(experiment(text), Mesh.params(**axes))
    program: Any = one.runtime.start(one.learner, initial_state(one.learner))
    batches = [one.train_input.batch(step) for step in range(3)]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    (arrays, size), _ = program.put(stacked, axis=1)
    with explain_engine_errors():
        arguments = (program._state, arrays, size)
        exported = jax.jit(export_call(program._functions.train, arguments))(*arguments[:2])
        trained = program._functions.train(*arguments)  # last: it gives its state away
    for ours, theirs in zip(jax.tree.leaves(exported), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_loop_of_steps_compiles_for_a_tpu_that_is_not_here(experiment, text):
    one = built(experiment(text), Mesh.params(data=8, shard_update=True))
    layout = one.runtime.layout(one.learner)
    functions = Functions(one.learner, layout, device_mesh(layout.mesh), donate=True)
    specs = one.train_input.specs()
    compiled = functions.compile(specs, num_steps=3, topology=topology_name("v5e", 8))
    module = parse(compiled.text)
    found = collectives(module, compiled.mesh)
    assert {"all-gather", "all-reduce"} <= {one.kind for one in found}
    assert all(one.runs.is_known for one in found)
    assert max(one.runs.times for one in found) == 3  # a loop, whose length the compiler knows
    assert 0 < tpu.padding_bytes(module) < compiled.memory["arguments"]
    assert tpu.cycles(module) > 0
