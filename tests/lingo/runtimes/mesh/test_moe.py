"""A mixture of experts on a mesh that splits the experts computes what it does on one device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from lingo.config.params import Params
from lingo.data.prompt import Prompt
from lingo.decode.sampling import Sampling
from lingo.decode.text import prompt_batch
from lingo.layers.feed_forward import FeedForward
from lingo.layers.moe.moe import MoE
from lingo.layers.moe.token_choice import GShardRouter, TopNRouter
from lingo.layers.sequence.transformer import TransformerLayer
from lingo.layers.stacks.repeat import Repeat
from lingo.learner.state import Learner, initial_state
from lingo.mesh.hlo.collectives import collectives
from lingo.mesh.hlo.module import parse
from lingo.optim.sgd import Sgd
from lingo.runtimes.local import Local
from lingo.runtimes.mesh.mesh import Mesh
from lingo.runtimes.runtime import Program
from tasks.lm.model import LanguageModel
from tasks.lm.task import LanguageModeling

pytestmark = pytest.mark.xdist_group("mesh_moe")  # each program is compiled once

B, T, V, E, NUM_STEPS = 8, 6, 19, 8, 3
WEIGHT = "model/stack/layers/[0:2]/ffn/experts/[0:8]/w_in"

MESHES = {
    "expert": Mesh.params(expert=8),
    "data and expert": Mesh.params(data=2, expert=4),
    "data": Mesh.params(data=8),
    "experts are split in themselves": Mesh.params(expert=2, model=2, rules="2d_finalized"),
    "rows are whole": Mesh.params(data=2, expert=4, rules="2d_attempt_1"),
}


ROUTER = TopNRouter.params(z_loss=1e-3)


def learner(router: Params = ROUTER, group_size: int | None = None) -> Learner:
    """Two scanned layers, two of eight experts a token, dropout inside and around them."""
    expert = FeedForward.params(gated=True, use_bias=True, hidden_dim=6, dropout_rate=0.3)
    mixture = MoE.params(expert=expert, num_experts=E, router=router, group_size=group_size)
    layer = TransformerLayer.params(ffn=mixture, dropout_rate=0.1)
    layer.attention.num_heads = 2
    model = LanguageModel.params(dim=8, stack=Repeat.params(layer=layer, num_layers=2))
    task = LanguageModeling.params(vocab_size=V, model=model).build()
    return Learner(task, Sgd.params(learning_rate=0.3, max_grad_norm=1.0).build())


def batches() -> dict[str, np.ndarray]:
    """Three batches; the last row of each ends in padding."""
    draw = np.random.default_rng(0)
    shape = (NUM_STEPS, B, T)
    segments = np.ones(shape, np.int32)
    segments[:, -1, 2:] = 0
    return {
        "tokens": draw.integers(0, V, shape, np.int32),
        "targets": draw.integers(0, V, shape, np.int32),
        "segments": segments,
        "positions": np.broadcast_to(np.arange(T, dtype=np.int32), shape).copy(),
        "weights": np.ones(shape[:2], np.float32),
        "rows": np.broadcast_to(np.arange(B, dtype=np.int32), shape[:2]).copy(),
    }


def started(mesh: Params, *model: Any) -> Program:
    made = learner(*model)
    return mesh.build().start(made, initial_state(made))


def trained(mesh: Params, *model: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    program = started(mesh, *model)
    report = program.train(batches())
    return report["scalars"], report["states"], program.state()


@functools.cache
def on_one_device() -> tuple[dict[str, Any], dict[str, Any], Any]:
    return trained(Local.params())


@pytest.mark.parametrize(
    "name", ["expert", "data", "experts are split in themselves", "rows are whole"]
)
def test_three_steps_are_those_of_one_device(name: str) -> None:
    assert_same(trained(MESHES[name]), on_one_device())


def test_groups_of_two_rows_with_jitter_are_those_of_one_device() -> None:
    model = GShardRouter.params(jitter=0.1, z_loss=1e-3), 2 * T
    found = trained(MESHES["data and expert"], *model)
    assert_same(found, trained(Local.params(), *model))
    assert (found[0]["loss/moe_z"] > 0).all()
    dropped = found[1]["moe/dropped_choices_fraction"]
    assert np.sum(dropped["sum"]) > 0, "or groups of other rows would not show"


def assert_same(found: tuple[Any, Any, Any], wanted: tuple[Any, Any, Any]) -> None:
    scalars, states, state = found
    wanted_scalars, wanted_states, wanted_state = wanted
    for name, value in wanted_scalars.items():
        np.testing.assert_allclose(scalars[name], value, rtol=1e-5, err_msg=name)
    assert "moe/dropped_fraction" in states
    for name, parts in wanted_states.items():
        for part, value in parts.items():
            np.testing.assert_allclose(
                states[name][part], value, rtol=1e-5, atol=1e-6, err_msg=name
            )
    for name, value in wanted_state.weights.items():
        np.testing.assert_allclose(state.weights[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, value in wanted_state.state.items():
        np.testing.assert_allclose(state.state[name], value, rtol=1e-5, err_msg=name)


def test_metrics_and_texts_are_those_of_one_device() -> None:
    one, many = started(Local.params()), started(MESHES["data and expert"])
    batch = {name: value[0] for name, value in batches().items()}
    expected, found = one.evaluate(batch), many.evaluate(batch)
    for name, state in expected.items():
        for part, value in state.items():
            np.testing.assert_allclose(found[name][part], value, rtol=1e-5, err_msg=name)
    texts = ([1, 2, 3], [4, 5], [6, 7, 8, 9])
    prompts = [Prompt(np.array(text, np.int32)) for text in texts]
    prompts = prompt_batch(prompts, rows=range(len(prompts)), end_id=0)
    sampling = Sampling.params(max_tokens=4).build()
    expected, found = one.decode(prompts, sampling), many.decode(prompts, sampling)
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])


def test_tokens_travel_to_experts_and_no_expert_to_tokens() -> None:
    mesh, made = MESHES["expert"].build(), learner()
    specs = {k: (v.shape[1:], v.dtype.name) for k, v in batches().items()}
    program = mesh.compile_program(made, specs)
    found = collectives(parse(program.text), program.mesh)
    vectors = [c for c in found if c.kind == "all-to-all" and c.array.dtype == "f32"]
    assert len(vectors) == 4  # there and back, and their gradients
    assert all(c.runs.times == 2 for c in vectors)  # a layer
    gathered = [c.array.shape for c in found if c.kind == "all-gather"]
    assert all(np.prod(shape) < E * 8 * 6 for shape in gathered), (
        gathered
    )  # a matrix of all experts


def test_each_device_holds_its_part_of_the_experts() -> None:
    made = learner()
    layout = MESHES["expert"].build().layout(made)
    shape = made.task.weights()[WEIGHT].program_shape
    assert shape == (2, E, 8, 6)
    assert layout.rest[WEIGHT].part_shape(shape, layout.mesh) == (2, 1, 8, 6)
    assert layout.slots[WEIGHT] == {} or all(
        cut == layout.rest[WEIGHT] for cut in layout.slots[WEIGHT].values()
    )
