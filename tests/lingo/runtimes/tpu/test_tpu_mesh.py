"""A mesh on a TPU: its fields, its errors, and its program as far as it goes without a TPU.

`TPUStrategy` traces the program, which never runs.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lingo.config.lazy import tf
from lingo.config.params import ParamError, Params
from lingo.contract import Experiment
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.learner.state import TrainState, initial_state, num_bytes
from lingo.learner.step import train_step
from lingo.mesh.split import Split, whole
from lingo.mesh.tiles import tiles
from lingo.mesh.topology import topology
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.tpu.core_program import Cut
from lingo.runtimes.tpu.cores import NoTpu
from lingo.runtimes.tpu.tpu_mesh import TpuMesh, TpuMeshProgram
from tests.lingo.runtimes.tpu.conftest import raises_without_a_tpu


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


NUM_STEPS = 3


@pytest.fixture
def gather_dtype() -> str:
    return "float32"


@pytest.fixture
def built(experiment: Callable[..., Params], text: str, gather_dtype: str) -> Experiment:
    mesh = TpuMesh.params(data=2, model=4, shard_update=True, gather_dtype=gather_dtype)
    return experiment(text).set(runtime=mesh).build()


@pytest.fixture
def program(built: Experiment, absent_tpu: Callable[..., Any]) -> TpuMeshProgram:
    """Returns a program whose variables are on this processor."""
    layout = built.runtime.layout(built.learner)
    cores = absent_tpu(layout.mesh)._replace(devices=("CPU:0",) * 8, hosts=("CPU:0",) * 8)
    return TpuMeshProgram(built.learner, initial_state(built.learner), layout, cores)


def operations(graph: Any, kind: str) -> list[Any]:
    return [op for op in graph.get_operations() if op.type == kind]


def traced(program: TpuMeshProgram, built: Experiment) -> Any:
    program.compile(built.train_input.specs(), num_steps=NUM_STEPS)
    (function,) = program._train._list_all_concrete_functions()
    return function.graph


def devices(op: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns dimensions and device numbers of the sharding on an operation."""
    from tensorflow.compiler.xla.xla_data_pb2 import OpSharding

    found = OpSharding.FromString(op.get_attr("_XlaSharding"))
    return tuple(found.tile_assignment_dimensions), tuple(found.tile_assignment_devices)


@pytest.mark.parametrize("gather_dtype", ["float32", "bfloat16"])
def test_every_tensor_of_the_state_is_read_and_written_in_parts(program, built):
    graph, layout = traced(program, built), built.runtime.layout(built.learner)
    slots = {(k, n): s for k, slots in layout.slots.items() for n, s in slots.items()}
    splits = [*layout.rest.values(), *slots.values(), *layout.state.values()]
    inputs = operations(graph, "TPUPartitionedInputV2")
    handles = [op for op in inputs if op.outputs[0].dtype == tf.resource]
    assert len(handles) == len(splits) + 1  # the step
    assert len(operations(graph, "AssignVariableOp")) == len(handles)
    assert {len(op.inputs) for op in handles} == {8}
    assignments = [tiles(split, layout.mesh) for split in splits]
    wanted = [
        (t.tile_assignment_dimensions, t.tile_assignment_devices)
        for t in assignments
        if not t.is_replicated
    ]
    found = [devices(op) for op in handles]
    assert sorted(f for f in found if f[0]) == sorted(wanted)
    if program._place.keeps_parts:
        with raises_without_a_tpu():
            program.evaluate(built.eval_inputs["same"].batch(0))


def test_each_core_is_fed_its_rows(program, built):
    inputs = operations(traced(program, built), "TPUPartitionedInputV2")
    batch = [op for op in inputs if op.outputs[0].dtype != tf.resource]
    assert len(batch) == len(built.train_input.specs())
    for op in batch:
        rows = op.inputs[0].shape[1]
        assert (op.inputs[0].shape[0], rows, op.outputs[0].shape[1]) == (NUM_STEPS, 2, 4)
        assert devices(op) == ((1, 2, *[1] * (len(op.outputs[0].shape) - 2), 4), tuple(range(8)))


def test_all_steps_are_one_loop_of_one_replica_on_all_cores(program, built):
    graph = traced(program, built)
    (metadata,) = operations(graph, "TPUReplicateMetadata")
    assert metadata.get_attr("num_replicas") == 1
    assert metadata.get_attr("num_cores_per_replica") == 8
    assert metadata.get_attr("use_spmd_for_xla_partitioning")
    places = np.reshape(metadata.get_attr("device_assignment"), (8, 4))
    assert (np.abs(np.diff(places.reshape(2, 4, 4), axis=1)).sum(-1) == 1).all()
    loops = [op for kind in ("While", "StatelessWhile") for op in operations(graph, kind)]
    assert [op.get_attr("_tpu_replicate") for op in loops] == [metadata.get_attr("_tpu_replicate")]


def test_evaluation_prediction_and_decoding_are_traced_and_then_want_a_tpu(program, built):
    batch = built.eval_inputs["same"].batch(0)
    for weights in ("trained", "ema"):
        with raises_without_a_tpu():
            program.evaluate(batch, weights=weights)
        with raises_without_a_tpu():
            program.predict(batch, weights=weights)
    prompts = prompt_batch([Prompt(np.int32([1, 2])), Prompt(np.int32([3]))], rows=[0, 1], end_id=0)
    with raises_without_a_tpu():
        program.decode(prompts, Sampling.params(max_tokens=2).build())


def test_the_state_is_what_was_put_in(program, built):
    first = initial_state(built.learner)
    tf.nest.map_structure(np.testing.assert_array_equal, program.state(), first)
    other = tf.nest.map_structure(lambda v: v + np.ones_like(v), first)
    program.load(other)
    tf.nest.map_structure(np.testing.assert_array_equal, program.state(), other)
    assert program.example_slice(7) == slice(0, 7)


def test_the_step_is_annotated_in_its_hlo_and_computes_the_same(program, built):
    def run(step: Callable[..., Any]) -> Any:
        return tf.function(step, jit_compile=True, autograph=False)

    layout = built.runtime.layout(built.learner)
    state: TrainState = tf.nest.map_structure(tf.constant, initial_state(built.learner))
    batch: Mapping[str, Any] = {k: tf.constant(v) for k, v in built.train_input.batch(0).items()}
    annotated = run(lambda state, batch: program._core.step(tf.constant(0), state, batch))
    text = annotated.experimental_get_compiler_ir(state, batch)(stage="hlo")
    found = set(re.findall(r"sharding=(\{[^}]*\})", text))
    weights = {str(tiles(split, layout.mesh)) for split in layout.rest.values()}
    updates = {str(tiles(split, layout.mesh)) for split in layout.update.values()}
    assert weights | updates <= found
    assert "{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}" in found  # [B, T, D]: rows
    shown = program.graph(built.train_input.specs())
    assert {"XlaSharding", "Einsum"} <= {op.type for op in shown.get_operations()}
    after, report = annotated(state, batch)
    plain, expected = run(lambda s, b: train_step(built.learner, s, b))(state, batch)
    np.testing.assert_allclose(
        report["scalars"]["loss/total"], expected["scalars"]["loss/total"], rtol=1e-6
    )
    for where, value in after.weights.items():
        np.testing.assert_allclose(value, plain.weights[where], atol=1e-6)


MESH = topology({"data": 2, "model": 4})


@pytest.mark.parametrize(
    "split",
    [
        whole(2),
        Split((("data",), ("model",))),
        Split((("model",), ("data",))),
        Split(((), ("model",))),
        Split((("data", "model"), ())),
        Split(((), ("model",)), ("data",)),
        Split((("data",), ()), ("model",), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (1, 9)])
def test_parts_are_the_whole(split, shape):
    cut, value = Cut(shape, split, MESH), np.random.default_rng(0).normal(size=shape).astype("f")
    parts = cut.parts(value)
    assert {part.shape for part in parts} == {cut.part_shape}
    np.testing.assert_array_equal(cut.whole(list(map(tf.constant, parts))), value)


def test_each_device_has_the_part_at_its_place_in_the_mesh():
    value = np.arange(8 * 4).reshape(8, 4)
    cut = Cut(value.shape, Split((("model",), ("data",))), MESH)
    by_device = dict(zip(cut.devices, cut.parts(value), strict=True))
    assert sorted(by_device) == list(range(8))
    for data in range(2):
        for model in range(4):
            expected = value[2 * model : 2 * model + 2, 2 * data : 2 * data + 2]
            np.testing.assert_array_equal(by_device[4 * data + model], expected)


def test_copies_are_one_array():
    cut = Cut((8, 3), Split((("model",), ())), MESH)
    assert len({id(part) for part in cut.parts(np.ones((8, 3)))}) == 4


def test_a_number_is_on_every_device():
    cut = Cut((), whole(0), MESH)
    parts = cut.parts(np.int32(7))
    assert len(parts) == 8
    assert cut.whole(list(map(tf.constant, parts))) == 7


def test_what_is_beyond_the_shape_is_zero():
    parts = Cut((5,), Split((("model",),)), MESH).parts(np.ones(5))
    assert [part.tolist() for part in parts[::2]] == [[1, 1], [1, 1], [1, 0], [0, 0]]
