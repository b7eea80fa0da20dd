"""The program of the cores where there is no TPU: on eight processors, and in a TPU's compiler."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from lingo.contract import Experiment
from lingo.learner.state import initial_state
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.flops import product_flops
from lingo.mesh.hlo.module import parse
from lingo.runtimes.mesh.engine import device_mesh, engine, explain_engine_errors, make_devices
from lingo.runtimes.mesh.mesh import Functions, Mesh
from lingo.runtimes.program import CompiledProgram
from lingo.runtimes.tpu.tpu_mesh import CoreFunctions, TpuMesh

NUM_STEPS = 3
SHARDED = {"data": 2, "model": 4, "shard_update": True}


@pytest.fixture(scope="module", autouse=True)
def _devices():
    make_devices(8)
    engine().devices()
    yield
    engine().clear_caches()


def both(experiment: Any, **fields: Any) -> tuple[Experiment, Functions, Functions]:
    """Returns an experiment, the programs of its `Mesh`, and those of its `TpuMesh`."""
    experiment.train_input.batch_size = 8  # divides: a mesh does not always cut padding away
    built = experiment.set(runtime=TpuMesh.params(**fields)).build()
    layout = built.runtime.layout(built.learner)
    of_mesh = Functions(built.learner, layout, device_mesh(layout.mesh), donate=True)
    return built, of_mesh, CoreFunctions(built.learner, layout)


@pytest.mark.parametrize("fields", [SHARDED, SHARDED | {"gather_dtype": "bfloat16"}], ids=str)
def test_it_computes_on_eight_devices_what_a_mesh_computes(experiment, text, fields):
    built, *programs = both(experiment(text), **fields)
    batches = [built.train_input.batch(step) for step in range(NUM_STEPS)]
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    size, results = stacked["rows"].shape[1], []
    with explain_engine_errors():
        for functions in programs:
            first = initial_state(built.learner)
            state = engine().tree.map(lambda place, v: place.put(v), functions.places, first)
            arrays = functions.rows.put(stacked, size=size, axis=1)
            results.append(functions.train(state, arrays, size))
    for ours, theirs in zip(*map(engine().tree.leaves, results), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-6)


def exchanges(program: CompiledProgram) -> Counter[Any]:
    """Counts the bytes of a program's collectives, by kind, type and axes."""
    found: Counter[Any] = Counter()
    for one in collectives(parse(program.text), program.mesh):
        assert one.runs.is_known
        found[one.kind, one.array.dtype, one.axes] += one.num_bytes * one.runs.times
    return found


@pytest.mark.parametrize(
    ("fields", "topology"), [(SHARDED, "v4:2x2x2"), ({"data": 8}, "v5e:2x4")], ids=str
)
def test_a_tpu_compiler_makes_of_it_what_it_makes_of_a_mesh(experiment, text, fields, topology):
    built, *programs = both(experiment(text), **fields)
    specs = built.train_input.specs()
    mesh, tpu = (f.compile(specs, num_steps=NUM_STEPS, topology=topology) for f in programs)
    assert exchanges(tpu) == exchanges(mesh)
    assert "all-reduce" in {kind for kind, *_ in exchanges(tpu)}
    flops = [product_flops(parse(one.text), is_tpu=True) for one in (tpu, mesh)]
    assert flops[0] == flops[1] > 0
    for kind in ("arguments", "outputs", "aliased"):
        assert tpu.memory[kind] == mesh.memory[kind] > 0
    assert tpu.memory["temporaries"] < 1.1 * mesh.memory["temporaries"]


def test_an_evaluation_compiles_for_a_tpu_that_is_not_here(experiment, text):
    built = experiment(text).set(runtime=TpuMesh.params(**SHARDED)).build()
    options = {"evaluation": True, "topology": "v5e:2x4"}
    learner, specs = built.learner, built.train_input.specs()
    ours = built.runtime.compile_program(learner, specs, **options)
    theirs = Mesh.params(**SHARDED).build().compile_program(learner, specs, **options)
    assert exchanges(ours) == exchanges(theirs)
    assert ours.memory["arguments"] == theirs.memory["arguments"]
