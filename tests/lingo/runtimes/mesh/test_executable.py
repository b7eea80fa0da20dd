"""What the partitioner made: devices exchange what they must, and hold what they should.

XLA's processors add a gradient up and take their part of the sum, where some accelerators have one
operation for both, reduce-scatter: what is said of gradients here holds for either.
"""

import math
from typing import Any

import pytest

from lingo.contract import Experiment
from lingo.layers.stacks.repeat import Repeat
from lingo.layers.stacks.stack import Stack
from lingo.layers.wrap.remat import Remat
from lingo.learner.state import initial_state
from lingo.mesh.hlo.collectives import Collective, collectives
from lingo.mesh.hlo.module import parse
from lingo.runtimes.mesh.mesh import Mesh

V, D, H = 264, 16, 64


def built(params, mesh, *, stack=Repeat, remat=False):
    """Two layers of width D, scanned or unrolled; every size divides by 8."""
    params.train_input.batch_size = 8
    params.task.vocab_size = V
    params.task.model.dim = D
    layer = params.task.model.stack.layer
    layer.attention.num_heads = 8
    layer = Remat.params(layer=layer) if remat else layer
    params.task.model.stack = stack.params(layer=layer, num_layers=2)
    return params.set(runtime=mesh).build()


def exchanged(experiment: Experiment) -> list[Collective]:
    program: Any = experiment.runtime.compile_program(
        experiment.learner, experiment.train_input.specs()
    )
    return collectives(parse(program.text), program.mesh)


def elements(found: list[Collective], *kinds: str) -> int:
    return sum(c.runs.times * math.prod(c.array.shape) for c in found if c.kind in kinds)


def test_replicas_of_a_model_exchange_gradients_only(experiment, text):
    experiment_ = built(experiment(text), Mesh.params(data=8))
    found = exchanged(experiment_)
    assert {(c.kind, c.axes) for c in found} == {("all-reduce", ("data",))}
    weights = sum(math.prod(w.shape) for w in experiment_.learner.weights().values())
    table = V * D  # the embedding is the head, too: two gradients
    assert weights + table <= elements(found, "all-reduce") < weights + table + 50


def test_a_layer_in_parts_adds_up_activations_and_gathers_no_weight(experiment, text):
    experiment_ = built(experiment(text), Mesh.params(model=8))
    found = exchanged(experiment_)
    assert {(c.kind, c.axes) for c in found} == {("all-reduce", ("model",))}
    size = experiment_.train_input.specs()["tokens"][0]
    sums = [c for c in found if c.array.shape == (*size, D)]
    assert sum(c.runs.times for c in sums) >= 2 * 2 * 2  # two a layer, and back
    assert max(math.prod(c.array.shape) for c in found) == math.prod(size) * D


def test_a_weight_that_is_updated_in_parts_is_gathered_once_a_step(experiment, text):
    found = exchanged(built(experiment(text), Mesh.params(data=8, shard_update=True)))
    assert {c.axes for c in found} == {("data",)}
    gathered = [c.array.shape for c in found if c.kind == "all-gather" and c.runs.times == 1]
    assert gathered.count((2, D, 4 * D)) == gathered.count((2, 4 * D, D)) == 1
    assert gathered.count((V, D)) == 1


def test_weights_in_bfloat16_are_gathered_in_half_as_many_bytes(experiment, text):
    mesh = Mesh.params(data=8, shard_update=True, gather_dtype="bfloat16")
    found = exchanged(built(experiment(text), mesh))
    gathers = {c.array.dtype for c in found if c.kind == "all-gather" and c.runs.times == 1}
    assert gathers == {"u16"}
    gathered = [c.array.shape for c in found if c.array.dtype == "u16"]
    assert gathered.count((2, D, 4 * D)) == gathered.count((2, 4 * D, D)) == 1
    assert gathered.count((V, D)) == 1


def test_weights_in_parts_are_gathered_layer_by_layer(experiment, text):
    found = exchanged(built(experiment(text), Mesh.params(data=8, shard_weights=True)))
    gathers = [c for c in found if c.kind == "all-gather"]
    inside = [c for c in gathers if c.array.shape in {(1, D, 4 * D), (D, 4 * D)}]
    assert [c.runs.times for c in inside] == [2, 2]  # layers, forward and backward
    assert not any(c.array.shape == (2, D, 4 * D) for c in gathers)  # never all of them


@pytest.mark.parametrize("remat", [False, True])
def test_unrolled_layers_gather_weights_once_and_keep_them_for_the_backward_pass(
    experiment, text, remat
):
    mesh = Mesh.params(data=8, shard_weights=True)
    found = exchanged(built(experiment(text), mesh, stack=Stack, remat=remat))
    gathers = [c for c in found if c.kind == "all-gather" and "/ffn/" in c.op_name]
    shapes = sorted(c.array.shape for c in gathers)
    assert shapes == [(D, 4 * D), (D, 4 * D), (4 * D, D), (4 * D, D)]  # of two layers
    assert not any("gradient_tape" in c.op_name for c in gathers)


def test_the_recipe_2d_finalized_gathers_weights_along_data_alone(experiment, text):
    mesh = Mesh.params(data=2, model=4, rules="2d_finalized")
    found = exchanged(built(experiment(text), mesh))
    gathers = [c for c in found if c.kind == "all-gather" and "/ffn/" in c.op_name]
    weights = [c for c in gathers if len(c.array.shape) == 2]
    assert {c.array.shape for c in weights} == {(D, 4 * D // 4)}  # the hidden width stays in parts
    assert [(c.axes, c.runs.times) for c in weights] == [(("data",), 2)] * 4  # two, and back
    assert {c.axes for c in gathers if c not in weights} == {("model",)}  # of activations


def test_a_state_lies_where_the_one_before_it_did(experiment, text):
    experiment_ = built(experiment(text), Mesh.params(data=2, model=4))
    program: Any = experiment_.runtime.compile_program(
        experiment_.learner, experiment_.train_input.specs()
    )
    arrays = initial_state(experiment_.learner)
    num_arrays = len(arrays.weights) + sum(map(len, arrays.slots.values()))
    assert program.text.count("may-alias") + program.text.count("must-alias") >= num_arrays
